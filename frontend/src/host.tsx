// What Airflow's page gives a plugin, without Airflow: for tests and for work on the pages.
import React from "react";
import * as ReactDOM from "react-dom";
import { createRoot } from "react-dom/client";
import * as ReactJSXRuntime from "react/jsx-runtime";
import * as ReactRouterDOM from "react-router-dom";

Object.assign(globalThis, { React, ReactDOM, ReactJSXRuntime, ReactRouterDOM });

/** A tab on a run, as Airflow's page gives it what it stands on. */
function OfRun() {
  const { dagId, runId } = ReactRouterDOM.useParams();
  const Tab = (globalThis as unknown as Record<string, React.FC<{ dagId?: string; runId?: string }>>)["Lake run"];
  return Tab === undefined ? null : <Tab dagId={dagId} runId={runId} />;
}

async function begin(): Promise<void> {
  const address = "/lake/app/lake.js";
  await import(/* @vite-ignore */ address);
  const App = (globalThis as unknown as { AirflowPlugin: React.FC }).AirflowPlugin;
  const root = document.getElementById("root");
  if (root !== null) {
    createRoot(root).render(
      <ReactRouterDOM.BrowserRouter>
        <ReactRouterDOM.Routes>
          <ReactRouterDOM.Route path="plugin/:page/*" element={<App />} />
          <ReactRouterDOM.Route path="dags/:dagId/runs/:runId/plugin/:page" element={<OfRun />} />
          <ReactRouterDOM.Route path="*" element={<p>Airflow's own page</p>} />
        </ReactRouterDOM.Routes>
      </ReactRouterDOM.BrowserRouter>,
    );
  }
}

void begin();
