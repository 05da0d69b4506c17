// Airflow imports this script once, and takes the component of each place from `globalThis`, by the name of the place.
import { App } from "./app";
import css from "./lake.css?inline";
import { DashboardCard, RunTab } from "./pages/inside";

const STYLE_ID = "lake-style";

if (document.getElementById(STYLE_ID) === null) {
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = css;
  document.head.append(style);
}

Object.assign(globalThis, { AirflowPlugin: App, "Lake": App, "Lake card": DashboardCard, "Lake run": RunTab, "Lake task": RunTab });
