// While Airflow does not answer: what was read stays, one banner has the time, and every query goes on trying.
import type { UseQueryResult, UseInfiniteQueryResult } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";

import { HttpError, nowMs } from "./api";
import { client } from "./client";
import { clock, useZone } from "./format";
import { Alert, Loading } from "./parts";

function isAway(error: unknown): boolean {
  return error !== null && error !== undefined && !(error instanceof HttpError && error.status < 500);
}

/** When Airflow last answered while it does not, ms; 0 when it does, or never did. */
let answeredMs = 0;

function readAway(): string {
  const asked = client.getQueryCache().findAll({ type: "active" });
  answeredMs = Math.max(answeredMs, ...asked.map((one) => one.state.dataUpdatedAt));
  return asked.some((one) => isAway(one.state.fetchFailureReason ?? one.state.error)) ? `away ${answeredMs}` : "";
}

function onAnswers(changed: () => void): () => void {
  return client.getQueryCache().subscribe(changed);
}

export function Away() {
  const away = useSyncExternalStore(onAnswers, readAway);
  const zone = useZone();
  if (away === "") {
    return null;
  }
  // The browser's clock to that of the server.
  const since = answeredMs === 0 ? "" : ` since ${clock(answeredMs + nowMs() - Date.now(), zone)}`;
  return (
    <div className="away" role="status">
      {`No answer from Airflow${since}; retrying.`}
      {answeredMs > 0 && " What you see is from then."}
    </div>
  );
}

/** What a query has no data for: why it was refused, or that it is being read. Nothing once it has data. */
export function Missing({ of }: { of: UseQueryResult<unknown> | UseInfiniteQueryResult<unknown> }) {
  if (of.error !== null && !isAway(of.error)) {
    return <Alert>{of.error.message}</Alert>;
  }
  return of.data === undefined ? <Loading /> : null;
}
