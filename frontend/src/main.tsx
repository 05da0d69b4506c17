// Airflow imports this script, and takes the component from `globalThis.AirflowPlugin`.
import { App } from "./app";
import css from "./lake.css?inline";

const STYLE_ID = "lake-style";

if (document.getElementById(STYLE_ID) === null) {
  const style = document.createElement("style");
  style.id = STYLE_ID;
  style.textContent = css;
  document.head.append(style);
}

(globalThis as Record<string, unknown>).AirflowPlugin = App;
