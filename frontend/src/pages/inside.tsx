// What stands in Airflow's own pages: a card on the dashboard, and a tab on runs and tasks.
import { QueryClientProvider } from "@tanstack/react-query";
import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { RetryAction } from "../actions";
import { get, HttpError, type Operation, type Operations, type Overview } from "../api";
import { client, ROOT } from "../client";
import { bytes, count, duration, moment, plural, useZone } from "../format";
import { StateChip, title } from "../names";
import { Empty, Loading, Trouble } from "../parts";

function Overall() {
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => get<Overview>("overview", {}, signal),
    refetchInterval: 30_000,
  });
  if (overview.isError) {
    // A user that may not read the Lake has a dashboard all the same.
    return overview.error instanceof HttpError && overview.error.status < 500 ? null : <Trouble>{overview.error.message}</Trouble>;
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
        <Trouble key={one}>{one}</Trouble>
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
    return <Trouble>{found.error.message}</Trouble>;
  }
  if (found.data === undefined) {
    return <Loading />;
  }
  const run = found.data.rows[0];
  return run === undefined ? <Empty>The Lake keeps the newest 100 runs of each table; this one is not among them.</Empty> : <Facts run={run} />;
}

function Facts({ run }: { run: Operation }) {
  const zone = useZone();
  const pair = (before: number | null, after: number | null, print: (value: number) => string) =>
    before === null && after === null ? "not reported" : `${before === null ? "?" : print(before)} read, ${after === null ? "?" : print(after)} written`;
  const facts: [string, string][] = [
    ["Reason", run.reason],
    ["Started by", run.by],
    ["Created", moment(run.created_ms, zone)],
    ["Waited", run.started_ms === null ? "not begun" : duration(run.started_ms - run.created_ms)],
    ["Spark job", run.job_s === 0 ? "not reported" : duration(run.job_s * 1000)],
    ["Files", pair(run.files_in, run.files_out, count)],
    ["Bytes", pair(run.bytes_in, run.bytes_out, bytes)],
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
    </section>
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
