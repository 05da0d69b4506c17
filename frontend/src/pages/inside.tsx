// What stands in Airflow's own pages: a card on the dashboard, and a tab on runs and tasks.
import { QueryClientProvider } from "@tanstack/react-query";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { RetryAction } from "../actions";
import { get, type Operation, type Operations, type Overview, type Phase } from "../api";
import { Away, Missing } from "../away";
import { client, ROOT } from "../client";
import { bytes, count, duration, fileSize, moment, plural, useNow, useZone } from "../format";
import { hue, StateChip, title } from "../names";
import { Empty, Alert } from "../parts";
import { errorOf, expectation, isMarked } from "./operations";

function Overall() {
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => get<Overview>("overview", {}, signal),
    refetchInterval: 30_000,
  });
  if (overview.data === undefined) {
    return null; // a user that may not read the Lake has a dashboard all the same
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

const DAGS = ["lake_table_service", "lake_reindex", "lake_restore", "lake_upgrade"];

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
  if (found.data === undefined) {
    return <Missing of={found} />;
  }
  const run = found.data.rows[0];
  return run === undefined ? <Empty>The Lake keeps the newest 100 runs of each table; this one is not among them.</Empty> : <Facts run={run} />;
}

function Facts({ run }: { run: Operation }) {
  const zone = useZone();
  const facts: [string, string][] = [
    ...(run.state === "failed" || run.error !== "" ? [[run.state === "failed" ? "Failed" : "Last failed try", errorOf(run)] as [string, string]] : []),
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
        {isMarked(run) ? (
          <StateChip state="new" word="marked success" />
        ) : (
          <StateChip state={run.state === "success" ? "healthy" : run.state === "failed" ? "failing" : "running"} word={(run.outcome || run.state).replaceAll("_", " ")} />
        )}
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

/** Where the time went, without a gap. Of a run with one try the Spark job is shown apart from the checks around it. */
function Phases({ run }: { run: Operation }) {
  const now = useNow();
  const parts: [string, number, string][] = run.phases.flatMap((one): [string, number, string][] => {
    const ms = (one.ended_ms ?? now) - one.began_ms;
    if (one.kind !== "try") {
      return [[OTHER_PHASES[one.kind], ms, one.kind === "closing" ? "var(--s-commits)" : "var(--st-waiting)"]];
    }
    const job = Math.min(run.job_s * 1000, ms);
    if (run.tries > 1 || job === 0) {
      const bad = one.state === "failed" || one.state === "up_for_retry" || (one.ended_ms !== null && one.state === "running");
      return [[tryText(one, run), ms, bad ? "var(--st-failing)" : hue(run.service)]];
    }
    return [
      ["Spark job", job, hue(run.service)],
      ["checks before and after it", ms - job, "var(--s-commits)"],
    ];
  });
  const end = run.ended_ms ?? now;
  const whole = Math.max(1, end - run.created_ms);
  return (
    <div className="phases">
      <h3>{`${run.ended_ms === null ? "So far" : "In all"} ${duration(whole)}`}</h3>
      <div className="phase-bar" aria-hidden="true">
        {parts.map(([name, ms, colour], number) => ms > 0 && <span key={number + name} style={{ width: `${(100 * ms) / whole}%`, background: colour }} />)}
      </div>
      <ul className="legend">
        {parts.map(
          ([name, ms, colour], number) =>
            ms > 0 && (
              <li key={number + name}>
                <i style={{ background: colour }} />
                {name} <b>{duration(ms)}</b>
              </li>
            ),
        )}
      </ul>
      {run.tries > 1 && run.job_s > 0 && <p className="note">{`Spark jobs of all tries that reported one: ${duration(run.job_s * 1000)}`}</p>}
    </div>
  );
}

const OTHER_PHASES = { waiting: "waited for a slot", pause: "pause before the next try", closing: "Airflow recorded the end" };

function tryText(one: Phase, run: Operation): string {
  if (run.tries === 1) {
    return one.ended_ms === null ? "the run so far" : "the run, no job reported";
  }
  const how = one.ended_ms === null ? "runs" : one.state === "success" ? "succeeded" : run.error === "" ? "was killed" : "failed";
  return `try ${one.try_number} ${how}`;
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
    const why = run.state === "failed" ? "it failed before it had replaced any" : run.ended_ms === null ? "it has not ended" : "there was nothing to do";
    return <Empty>{`The run reported no files: ${why}.`}</Empty>;
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
        <Away />
        <Overall />
      </div>
    </QueryClientProvider>
  );
}

export function RunTab(place: Place) {
  return (
    <QueryClientProvider client={client}>
      <div className="lake inside">
        <Away />
        <OfRun {...place} />
      </div>
    </QueryClientProvider>
  );
}
