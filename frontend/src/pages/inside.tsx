// What stands in Airflow's own pages: a card on the dashboard, and a tab on runs and tasks.
import { QueryClientProvider } from "@tanstack/react-query";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { RetryAction } from "../actions";
import { get, HttpError, type Operation, type Operations, type Overview } from "../api";
import { client, ROOT } from "../client";
import { bytes, count, duration, fileSize, moment, plural, useNow, useZone } from "../format";
import { hue, StateChip, title } from "../names";
import { Empty, Loading, Alert } from "../parts";
import { expectation } from "./operations";

function Overall() {
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => get<Overview>("overview", {}, signal),
    refetchInterval: 30_000,
  });
  if (overview.isError) {
    // A user that may not read the Lake has a dashboard all the same.
    return overview.error instanceof HttpError && overview.error.status < 500 ? null : <Alert>{overview.error.message}</Alert>;
  }
  if (overview.data === undefined) {
    return null;
  }
  const { tables, states, problems, backlog_bytes } = overview.data;
  const shown = states.filter((one) => one.tables > 0 && one.state !== "healthy");
  return (
    <section className="inside-card" aria-label="Lake">
      <h2>
        <Link to={ROOT}>Lake</Link>
      </h2>
      <span>{`${plural(tables, "table")}, ${bytes(backlog_bytes)} to compact`}</span>
      {shown.map((one) => (
        <Link key={one.state} to={`${ROOT}?state=${one.state}`}>
          <StateChip state={one.state} word={`${count(one.tables)} ${one.state}`} />
        </Link>
      ))}
      {shown.length === 0 && tables > 0 && <StateChip state="healthy" word="all healthy" />}
      {problems.map((one) => (
        <Alert key={one}>{one}</Alert>
      ))}
    </section>
  );
}

interface Place {
  dagId?: string;
  runId?: string;
}

const DAGS = ["lake_table_service", "lake_reindex"];

function OfRun({ dagId = "", runId = "" }: Place) {
  const isOurs = DAGS.includes(dagId);
  const found = useQuery({
    queryKey: ["run", runId],
    queryFn: ({ signal }) => get<Operations>("operations", { run_id: runId, limit: 1 }, signal),
    refetchInterval: 5_000,
    enabled: isOurs,
  });
  if (!isOurs) {
    return <Empty>This run executes no table service.</Empty>;
  }
  if (found.isError) {
    return <Alert>{found.error.message}</Alert>;
  }
  if (found.data === undefined) {
    return <Loading />;
  }
  const run = found.data.rows[0];
  return run === undefined ? <Empty>The Lake keeps the newest 100 runs of each table; this one is not among them.</Empty> : <Facts run={run} />;
}

function Facts({ run }: { run: Operation }) {
  const zone = useZone();
  const facts: [string, string][] = [
    ["Reason", run.reason],
    ["Started by", run.by],
    ["Created", moment(run.created_ms, zone)],
    ["Expected", expectation(run) || "not priced: started by hand"],
    ["Tries", count(run.tries)],
  ];
  return (
    <section className="inside-run" aria-label="Table service">
      <h2>
        {`${title(run.service)} of `}
        <Link to={`${ROOT}/tables/${encodeURIComponent(run.table_id)}`}>{[run.database, run.table_name].filter(Boolean).join(".")}</Link>{" "}
        <StateChip state={run.state === "success" ? "healthy" : run.state === "failed" ? "failing" : "running"} word={(run.outcome || run.state).replaceAll("_", " ")} />
        {run.state === "failed" && <RetryAction dagId={run.dag_id} runId={run.run_id} service={run.service} />}
      </h2>
      <dl>
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      <Phases run={run} />
      <BeforeAndAfter run={run} />
    </section>
  );
}

/** Where the time went: waiting for a slot, the Spark jobs of all tries, and checks, admission and pauses between tries. */
function Phases({ run }: { run: Operation }) {
  const now = useNow();
  const end = run.ended_ms ?? now;
  const waited = (run.started_ms ?? end) - run.created_ms;
  const job = Math.min(run.job_s * 1000, end - run.created_ms - waited);
  const phases: [string, number, string][] = [
    ["waited for a slot", waited, "var(--st-waiting)"],
    [run.tries > 1 ? "Spark jobs of all tries" : "Spark job", job, hue(run.service)],
    [run.job_s === 0 ? "the run, no job reported" : run.tries > 1 ? "checks, and pauses between tries" : "checks before and after it", end - run.created_ms - waited - job, "var(--s-commits)"],
  ];
  const whole = Math.max(1, end - run.created_ms);
  return (
    <div className="phases">
      <h3>{`${run.ended_ms === null ? "So far" : "In all"} ${duration(whole)}`}</h3>
      <div className="phase-bar" aria-hidden="true">
        {phases.map(([name, ms, colour]) => ms > 0 && <span key={name} style={{ width: `${(100 * ms) / whole}%`, background: colour }} />)}
      </div>
      <ul className="legend">
        {phases.map(
          ([name, ms, colour]) =>
            ms > 0 && (
              <li key={name}>
                <i style={{ background: colour }} />
                {name} <b>{duration(ms)}</b>
              </li>
            ),
        )}
      </ul>
    </div>
  );
}

/** What the run read and replaced, above what it wrote, in one scale. */
function BeforeAndAfter({ run }: { run: Operation }) {
  const rows: [string, number | null, number | null, (value: number) => string][] = [
    ["Files", run.files_in, run.files_out, count],
    ["Bytes", run.bytes_in, run.bytes_out, bytes],
    ["File size", fileSize(run.bytes_in, run.files_in), fileSize(run.bytes_out, run.files_out), bytes],
  ];
  const reported = rows.filter(([, before, after]) => before !== null || after !== null);
  if (reported.length === 0) {
    return <Empty>The run reported no files: it has not ended, or there was nothing to do.</Empty>;
  }
  return (
    <table className="before-after">
      <thead>
        <tr>
          <td />
          <th>Read</th>
          <th>Written</th>
        </tr>
      </thead>
      <tbody>
        {reported.map(([name, before, after, print]) => {
          const most = Math.max(before ?? 0, after ?? 0, 1);
          return (
            <tr key={name}>
              <th scope="row">{name}</th>
              {[before, after].map((value, number) => (
                <td key={number} className="number">
                  {value === null ? "–" : print(value)}
                  <span className="bar" aria-hidden="true">
                    <span style={{ width: `${(100 * (value ?? 0)) / most}%`, background: number === 0 ? "var(--logs)" : hue(run.service) }} />
                  </span>
                </td>
              ))}
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

export function DashboardCard() {
  return (
    <QueryClientProvider client={client}>
      <div className="lake inside">
        <Overall />
      </div>
    </QueryClientProvider>
  );
}

export function RunTab(place: Place) {
  return (
    <QueryClientProvider client={client}>
      <div className="lake inside">
        <OfRun {...place} />
      </div>
    </QueryClientProvider>
  );
}
