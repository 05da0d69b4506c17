// The tabs of a table's page.
import { useQuery } from "@tanstack/react-query";
import { useSearchParams } from "react-router-dom";

import { IndexAction, RepairAction } from "../actions";
import { get, type Examination, type History, type Hold, type Lag, type Operations, type Policy, type Table, type Timeline } from "../api";
import { Missing } from "../away";
import { ago, bytes, count, duration, moment, plural, useNow, useZone } from "../format";
import { Help, hue, StateChip, title } from "../names";
import { Empty, Loading, Alert } from "../parts";
import { OperationRows } from "./operations";

const EXAMINE_EVERY_MS = 15_000;
const TABS = ["operations", "history", "instants", "indexes", "replication", "conflicts", "writers", "doctor", "policy"] as const;
type Tab = (typeof TABS)[number];

export function Tabs({ table, timeline, operations }: { table: Table; timeline: Timeline | undefined; operations: Operations | undefined }) {
  const [params, setParams] = useSearchParams();
  const named = params.get("tab") as Tab | null;
  const tab: Tab = named !== null && TABS.includes(named) ? named : "operations";
  const problems = timeline?.problems.length ?? 0;
  const broken = table.writers.filter((one) => one.state === "broken").length;
  const marks: Partial<Record<Tab, number>> = { replication: table.sinks.length + table.holds.length, writers: broken, doctor: problems + table.holes };
  const choose = (next: Tab) => {
    setParams({ tab: next }, { replace: true });
    document.getElementById(`tab-${next}`)?.focus();
  };
  return (
    <section className="panel" aria-label="Details">
      <div
        role="tablist"
        aria-label="Details"
        className="tabs"
        onKeyDown={(event) => {
          const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
          if (step !== undefined) {
            choose(TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length] ?? tab);
          }
        }}
      >
        {TABS.map((one) => (
          <button
            key={one}
            type="button"
            role="tab"
            id={`tab-${one}`}
            aria-selected={one === tab}
            aria-controls="tab-panel"
            tabIndex={one === tab ? 0 : -1}
            onClick={() => choose(one)}
          >
            {one}
            {(marks[one] ?? 0) > 0 && <b>{marks[one]}</b>}
          </button>
        ))}
      </div>
      <div role="tabpanel" id="tab-panel" aria-labelledby={`tab-${tab}`} tabIndex={0} className="tab-panel">
        {tab === "operations" && (operations === undefined ? <Loading /> : <OperationRows rows={operations.rows} isOfOneTable />)}
        {tab === "history" && <HistoryTab tableId={table.row.table_id} />}
        {tab === "instants" && <Instants timeline={timeline} />}
        {tab === "indexes" && <Indexes table={table} timeline={timeline} />}
        {tab === "replication" && <Sinks table={table} />}
        {tab === "conflicts" && <Conflicts table={table} />}
        {tab === "writers" && <Writers table={table} />}
        {tab === "doctor" && <Doctor table={table} timeline={timeline} />}
        {tab === "policy" && <PolicyTab tableId={table.row.table_id} />}
      </div>
    </section>
  );
}

/** Why something did not run last night: what kept each service, from when until when, and its runs. */
function HistoryTab({ tableId }: { tableId: string }) {
  const zone = useZone();
  const [params, setParams] = useSearchParams();
  const history = useQuery({
    queryKey: ["history", tableId],
    queryFn: ({ signal }) => get<History>(`tables/${encodeURIComponent(tableId)}/history`, {}, signal),
    refetchInterval: EXAMINE_EVERY_MS,
  });
  const found = history.data;
  if (found === undefined) {
    return <Missing of={history} />;
  }
  const services = [...new Set(found.lines.map((one) => one.service))].filter(Boolean).sort();
  const chosen = params.get("of") ?? "";
  const lines = found.lines.filter((one) => chosen === "" || one.service === chosen || one.service === "");
  return (
    <>
      <p className="filters">
        <label>
          Service{" "}
          <select value={chosen} onChange={(event) => setParams({ tab: "history", ...(event.target.value !== "" && { of: event.target.value }) }, { replace: true })}>
            <option value="">all</option>
            {services.map((one) => (
              <option key={one} value={one}>
                {title(one)}
              </option>
            ))}
          </select>
        </label>{" "}
        <span className="note">{`What kept a service from running for a minute or longer in the last ${found.days} days, and its runs.`}</span>
      </p>
      {lines.length === 0 && <Empty>Nothing yet: the table has not been evaluated.</Empty>}
      {lines.length > 0 && (
        <div className="wide" role="region" tabIndex={0} aria-label="History of decisions">
          <table className="history">
            <thead>
              <tr>
                {["From", "Until", "For", "Service", "What", "Due since", "Why"].map((name) => (
                  <th key={name}>{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {lines.map((one) => (
                <tr key={`${one.service} ${one.situation} ${one.from_ms}`}>
                  <td className="nowrap">{moment(one.from_ms, zone)}</td>
                  <td className="nowrap">{one.until_ms === null ? "now" : moment(one.until_ms, zone)}</td>
                  <td className="nowrap">{one.until_ms === null ? "" : duration(one.until_ms - one.from_ms)}</td>
                  <td className="nowrap">
                    <i className="swatch" style={{ background: hue(one.service) }} />
                    {one.service === "" ? "the table" : title(one.service)}
                  </td>
                  <td>{one.what}</td>
                  <td className="nowrap">{one.due_ms === null ? "" : moment(one.due_ms, zone)}</td>
                  <td className="why">{one.reason}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Instants({ timeline }: { timeline: Timeline | undefined }) {
  const zone = useZone();
  if (timeline === undefined) {
    return <Loading />;
  }
  const newest = timeline.instants.slice(-100).reverse();
  if (newest.length === 0) {
    return <Empty>No instants.</Empty>;
  }
  return (
    <div className="wide">
      <table>
        <thead>
          <tr>
            {["Requested", "Action", "Operation", "State", "Took", "Base files", "Log files", "Written"].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {newest.map((one) => (
            <tr key={one.requested_time + one.action}>
              <td title={one.requested_time}>{moment(one.requested_ms, zone)}</td>
              <td>
                <i className="swatch" style={{ background: hue(one.lane) }} />
                {one.action}
              </td>
              <td>{one.operation.toLowerCase().replaceAll("_", " ")}</td>
              <td>
                <StateChip state={one.state === "COMPLETED" ? "healthy" : one.is_hole ? "failing" : "running"} word={one.is_hole ? "holds up later writes" : one.state.toLowerCase()} />
              </td>
              <td className="number">{one.completed_ms === null ? "" : duration(one.completed_ms - one.requested_ms)}</td>
              <td className="number">{one.base_files > 0 ? count(one.base_files) : ""}</td>
              <td className="number">{one.log_files > 0 ? count(one.log_files) : ""}</td>
              <td className="number">{one.written_bytes > 0 ? bytes(one.written_bytes) : ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Indexes({ table, timeline }: { table: Table; timeline: Timeline | undefined }) {
  const decision = table.services.find((one) => one.service === "indexing");
  const missing = (decision?.evidence.missing ?? "").split(", ").filter(Boolean);
  const complete = timeline?.indexes ?? [];
  return (
    <>
      {decision !== undefined && complete.length + missing.length > 0 && <p>{decision.reason}</p>}
      <ul className="index-list">
        {complete.map((one) => (
          <li key={one}>
            <StateChip state="healthy" word="complete" /> <code>{one}</code> <IndexAction table={table} index={one} isComplete />
          </li>
        ))}
        {missing.map((one) => (
          <li key={one}>
            <StateChip state="waiting" word="missing" /> <code>{one}</code> <IndexAction table={table} index={one} isComplete={false} />
          </li>
        ))}
      </ul>
      {complete.length + missing.length === 0 && <Empty>The table has no metadata table, and its policy requests no index.</Empty>}
    </>
  );
}

/** What a sink lacks; within a snapshot how many of its rows it has, and the commits after the snapshot's instant. */
function behind(lag: Lag): string {
  const commits = lag.lag_commits === 0 ? "nothing" : plural(lag.lag_commits, "commit");
  if (lag.snapshot_rows === null) {
    return commits;
  }
  const of = lag.snapshot_total === null ? "" : ` of ${count(lag.snapshot_total)}`;
  return `snapshot: ${count(lag.snapshot_rows)}${of} rows, after its instant ${commits}`;
}

function Sinks({ table }: { table: Table }) {
  const seen = useExamination(table);
  const now = useNow();
  const zone = useZone();
  if (table.sinks.length === 0) {
    return (
      <>
        <Empty>The table is not replicated. `replication` in the tables file names sinks.</Empty>
        <Readers holds={table.holds} />
      </>
    );
  }
  return (
    <>
    <div className="wide">
      <table>
        <thead>
          <tr>
            {["Sink", "State", "Behind", "Oldest commit that it lacks", "Cleaning leaves everything since", "Held", "Renewed", "Problem"].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.sinks.map((one) => {
            const lag = seen.data?.lags.find((other) => other.sink === one.sink);
            return (
            <tr key={one.sink}>
              <td>{one.sink}</td>
              <td>
                <StateChip state={sinkState(one, lag?.lag_commits ?? 0)} word={one.state} />
              </td>
              <td>{lag === undefined ? "…" : behind(lag)}</td>
              <td>{lag === undefined || lag.lag_commits === 0 ? "" : `completed ${duration(lag.lag_s * 1000)} ago`}</td>
              <td>{one.hold === "0" ? "the first commit" : moment(one.hold_ms, zone)}</td>
              <td className="number">{lag === undefined || lag.held_bytes === 0 ? "" : bytes(lag.held_bytes)}</td>
              <td>{ago(one.renewed_ms, now)}</td>
              <td>{one.problem}</td>
            </tr>
            );
          })}
        </tbody>
      </table>
    </div>
      <Readers holds={table.holds} />
    </>
  );
}

/** The readers that keep files of the table, next to its sinks: cleaning waits for both. */
function Readers({ holds }: { holds: Hold[] }) {
  const now = useNow();
  const zone = useZone();
  if (holds.length === 0) {
    return null;
  }
  return (
    <div className="wide">
      <table>
        <thead>
          <tr>
            {["Reader", "Why", "State", "Cleaning leaves everything since", "Holds since", "Ends unless renewed", "Ends in any case"].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {holds.map((one) => (
            <tr key={one.reader + String(one.created_ms)}>
              <td>{one.reader}</td>
              <td>{one.reason}</td>
              <td>
                <StateChip state={one.is_firm ? "running" : "waiting"} word={one.is_firm ? "reads" : "waits for a clean"} />
              </td>
              <td>{moment(one.hold_ms, zone)}</td>
              <td>{ago(one.created_ms, now)}</td>
              <td>{moment(one.ends_ms, zone)}</td>
              <td>{moment(one.until_ms, zone)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function sinkState(sink: Table["sinks"][number], behind: number): string {
  if (sink.problem !== "") {
    return "failing";
  }
  return sink.state === "running" ? "running" : behind > 0 || sink.state === "not begun" ? "waiting" : "healthy";
}

/** What the table's store shows now; only an open tab asks for it. */
function useExamination(table: Table) {
  const path = `tables/${encodeURIComponent(table.row.table_id)}/examination`;
  return useQuery({
    queryKey: ["examination", table.row.table_id],
    queryFn: ({ signal }) => get<Examination>(path, {}, signal),
    refetchInterval: EXAMINE_EVERY_MS,
  });
}

function Unread({ problems }: { problems: string[] }) {
  return problems.map((one) => <Alert key={one}>{one}</Alert>);
}

function Conflicts({ table }: { table: Table }) {
  const seen = useExamination(table);
  if (seen.data === undefined) {
    return <Missing of={seen} />;
  }
  return (
    <>
      <Unread problems={seen.data.problems} />
      {seen.data.active.length === 0 ? (
        <Empty>No writer and no service is at work on the table.</Empty>
      ) : (
        <div className="wide">
          <table>
            <thead>
              <tr>
                {["Instant", "Action", "Role", "State", "Heartbeat", "File groups", "Gives way to"].map((name) => (
                  <th key={name}>{name}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {seen.data.active.map((one) => (
                <tr key={one.instant + one.role}>
                  <td>
                    <code>{one.instant}</code>
                  </td>
                  <td>{one.action}</td>
                  <td>{one.role}</td>
                  <td>
                    <StateChip state={one.clashes.length > 0 ? "failing" : one.state === "live" ? "running" : "waiting"} word={one.state} />
                  </td>
                  <td>{one.heartbeat_age_s === null ? "none" : `${duration(one.heartbeat_age_s * 1000)} ago`}</td>
                  <td>{one.file_groups}</td>
                  <td>{[...one.clashes, ...one.unread.map((name) => `not known: ${name}`)].join("; ") || "nothing"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Writers({ table }: { table: Table }) {
  const now = useNow();
  if (table.writers.length === 0) {
    return <Empty>The table's writers were not checked yet: the manager checks after a commit.</Empty>;
  }
  return (
    <>
      <div className="wide">
        <table>
          <thead>
            <tr>
              {["Requirement", "State", "Evidence", "Set in the writers", "Blocked meanwhile"].map((name) => (
                <th key={name}>{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {table.writers.map((one) => (
              <tr key={one.requirement}>
                <td>{one.requirement.replaceAll("_", " ")}</td>
                <td>
                  <StateChip state={one.state === "met" ? "healthy" : one.state === "broken" ? "failing" : "new"} word={one.state} />
                </td>
                <td>
                  {one.evidence}
                  {one.state === "broken" && <p>{`Endangers ${one.endangers}`}</p>}
                </td>
                <td>{one.state === "met" ? "" : one.settings.map((setting) => <code key={setting}>{setting} </code>)}</td>
                <td>{one.state === "broken" ? one.blocks.join(", ") : ""}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p className="note">{`checked ${ago(table.writers_checked_ms, now)}`}</p>
    </>
  );
}

function Doctor({ table, timeline }: { table: Table; timeline: Timeline | undefined }) {
  const seen = useExamination(table);
  const problems = timeline?.problems ?? [];
  const findings = seen.data?.findings ?? [];
  return (
    <>
      <Missing of={seen} />
      <Unread problems={seen.data?.problems ?? []} />
      {problems.map((one) => (
        <Alert key={one.message}>
          <strong>{one.message}</strong>
          {one.repair !== "" && <p>{one.repair}</p>}
        </Alert>
      ))}
      {findings.map((one) => (
        <Alert key={one.kind + one.instant} tone="warn">
          <strong>{one.message}</strong> <code>{one.kind}</code>
          <p>{`It holds up ${one.holds_up}. ${one.blocks.join("; ")}`}</p>
          <p>{one.repair}</p>
          <Help place={one.help} />
          {one.call !== null ? (
            <RepairAction table={table} call={{ ...one.call, reason: `repair of ${one.kind}: ${one.does}` }} does={one.does} />
          ) : (
            <p className="note">
              {one.refusal !== "" ? (
                `The doctor does nothing now: ${one.refusal}.`
              ) : (
                <code>{`airflow lake doctor ${table.row.base_path} --repair ${one.kind}`}</code>
              )}
            </p>
          )}
        </Alert>
      ))}
      {seen.data !== undefined && problems.length + findings.length + seen.data.problems.length === 0 && <Empty>Nothing is stuck on the timeline.</Empty>}
      <p className="note">
        A full examination also reads each instant's file: <code>{`airflow lake doctor ${table.row.base_path}`}</code>
      </p>
    </>
  );
}

function PolicyTab({ tableId }: { tableId: string }) {
  const policy = useQuery({
    queryKey: ["policy", tableId],
    queryFn: ({ signal }) => get<Policy>(`tables/${encodeURIComponent(tableId)}/policy`, {}, signal),
  });
  if (policy.data === undefined) {
    return <Missing of={policy} />;
  }
  const set = policy.data.settings.filter((one) => one.source !== "built in");
  const rest = policy.data.settings.filter((one) => one.source === "built in");
  return (
    <>
      {set.length === 0 ? <Empty>Every value is the built-in one.</Empty> : <Settings name="Set for this table" settings={set} />}
      <details>
        <summary>{`${count(rest.length)} built-in values`}</summary>
        <Settings name="Built in" settings={rest} />
      </details>
    </>
  );
}

function Settings({ name, settings }: { name: string; settings: Policy["settings"] }) {
  return (
    <div className="wide">
      <table aria-label={name}>
        <thead>
          <tr>
            <th>Setting</th>
            <th>Value</th>
            <th>Set by</th>
          </tr>
        </thead>
        <tbody>
          {settings.map((one) => (
            <tr key={one.name}>
              <td>
                <code>{one.name}</code>
              </td>
              <td>
                <code>{one.value}</code>
              </td>
              <td>
                {one.source}
                {one.place !== "" && (
                  <>
                    {" "}
                    <code>{one.place}</code>
                  </>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
