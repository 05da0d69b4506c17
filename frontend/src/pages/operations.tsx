import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "react-router-dom";

import { RetryAction } from "../actions";
import { address, get, type Operation, type Operations, type Overview } from "../api";
import { Missing } from "../away";
import { ago, bytes, count, dayAfter, dayBegins, duration, moment, useNow, useZone } from "../format";
import { hue, SERVICES, StateChip, title } from "../names";
import { Empty, Panel, RunLink, useTitle, useTyped } from "../parts";

const EVERY_MS = 10_000;
const RUN_STATES = ["queued", "running", "success", "failed"];
const CHIPS: Record<string, string> = { success: "healthy", failed: "failing", running: "running", queued: "waiting" };

export function OperationsPage() {
  useTitle("Operations");
  const [params, setParams] = useSearchParams();
  const zone = useZone();
  const [from, until] = [params.get("from") ?? "", params.get("until") ?? ""];
  const filters = {
    service: params.get("service") ?? "",
    state: params.get("state") ?? "",
    table_id: params.get("table_id") ?? "",
    q: params.get("q") ?? "",
    owner: params.get("owner") ?? "",
    since_ms: notNegative(dayBegins(from, zone)),
    until_ms: notNegative(dayBegins(dayAfter(until), zone)),
  };
  const owners = useQuery({ queryKey: ["overview"], queryFn: ({ signal }) => get<Overview>("overview", {}, signal) }).data?.owners ?? [];
  const isFiltered = Object.values(filters).some((one) => one !== "" && one !== undefined);
  const operations = useInfiniteQuery({
    queryKey: ["operations", filters],
    queryFn: ({ pageParam, signal }) => get<Operations>("operations", { ...filters, after: pageParam, limit: 100 }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => (last.next === "" ? undefined : last.next),
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 0) <= 2 ? EVERY_MS : false),
    placeholderData: keepPreviousData,
  });
  const rows = operations.data?.pages.flatMap((page) => page.rows) ?? [];
  const change = (name: string, value: string) =>
    setParams(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === "") {
          after.delete(name);
        } else {
          after.set(name, value);
        }
        return after;
      },
      { replace: true },
    );
  return (
    <>
      <h1 className="visually-hidden">Operations</h1>
      <Panel
        name="Operations"
        aside={
          <a className="button" href={address("operations.csv", filters)} download>
            CSV
          </a>
        }
      >
        <div className="filters">
          <Typed text={filters.q} choose={(text) => change("q", text)} />
          <label>
            <span>Service</span>
            <select value={filters.service} onChange={(event) => change("service", event.target.value)}>
              <option value="">all</option>
              {SERVICES.map((one) => (
                <option key={one} value={one}>
                  {title(one)}
                </option>
              ))}
            </select>
          </label>
          <label>
            <span>Outcome</span>
            <select value={filters.state} onChange={(event) => change("state", event.target.value)}>
              <option value="">all</option>
              {RUN_STATES.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          {(owners.length > 0 || filters.owner !== "") && (
            <label>
              <span>Owner</span>
              <select value={filters.owner} onChange={(event) => change("owner", event.target.value)}>
                <option value="">all</option>
                {filters.owner !== "" && !owners.some((one) => one.owner === filters.owner) && <option>{filters.owner}</option>}
                {owners.map((one) => (
                  <option key={one.owner}>{one.owner}</option>
                ))}
              </select>
            </label>
          )}
          <label>
            <span>From</span>
            <input type="date" value={from} max={until} onChange={(event) => change("from", event.target.value)} />
          </label>
          <label>
            <span>Until</span>
            <input type="date" value={until} min={from} onChange={(event) => change("until", event.target.value)} />
          </label>
          {filters.table_id !== "" && (
            <button type="button" className="facet" onClick={() => change("table_id", "")}>
              {`table ${filters.table_id}`} <b aria-label="remove">×</b>
            </button>
          )}
        </div>
        <Missing of={operations} />
        {operations.data !== undefined && <OperationRows rows={rows} isFiltered={isFiltered} />}
        {operations.hasNextPage && (
          <p className="more">
            <button type="button" className="button" disabled={operations.isFetchingNextPage} onClick={() => void operations.fetchNextPage()}>
              {operations.isFetchingNextPage ? "Reading…" : "Older runs"}
            </button>
          </p>
        )}
      </Panel>
    </>
  );
}

/** While a year is typed, its first digits are one long before any run. */
function notNegative(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : Math.max(0, ms);
}

function Typed({ text, choose }: { text: string; choose: (text: string) => void }) {
  const [typed, setTyped] = useTyped(text, choose);
  return (
    <label className="search">
      <span className="visually-hidden">Search by table</span>
      <input type="search" placeholder="Table, database or path" value={typed} onChange={(event) => setTyped(event.target.value)} />
    </label>
  );
}

/** Whether a person, or the manager by the timeline, has marked it: the last try that reported had failed. */
export function isMarked(one: Operation): boolean {
  return one.state === "success" && one.outcome === "failed";
}

/** Airflow's state, or what the executor found where that says more. */
function outcomeOf(one: Operation): string {
  if (isMarked(one)) {
    return "marked success";
  }
  return one.state === "success" && !["", "completed"].includes(one.outcome) ? one.outcome.replaceAll("_", " ") : one.state;
}

/** Why it failed, and why it ran. */
export function whyOf(one: Operation): string {
  const because = one.reason === "" ? "" : `; started because ${one.reason}`;
  if (one.state === "failed") {
    return `failed: ${errorOf(one)}${because}`;
  }
  // A run that is tried again says what the last try failed of.
  return (one.state !== "success" || isMarked(one)) && one.error !== "" ? `a try failed: ${one.error}${because}` : one.reason;
}

export function errorOf(one: Operation): string {
  return one.error || "no try reported why: its task was killed; the run's log has more";
}

function change(before: number | null, after: number | null, print: (value: number) => string): string {
  if (before === null && after === null) {
    return "";
  }
  return `${before === null ? "?" : print(before)} → ${after === null ? "?" : print(after)}`;
}

export function OperationRows({ rows, isOfOneTable = false, isFiltered = false }: { rows: Operation[]; isOfOneTable?: boolean; isFiltered?: boolean }) {
  const now = useNow();
  const zone = useZone();
  if (rows.length === 0 && isFiltered) {
    return <Empty>No run matches. Remove a filter; the Lake keeps the newest 100 runs of each table.</Empty>;
  }
  if (rows.length === 0) {
    return (
      <Empty>
        Airflow has no run, or has deleted them: the tables' histories and the bill keep what they did. The manager starts one when a service is due: <code>airflow lake explain TABLE</code> says what is due and why.{" "}
        <code>airflow lake run TABLE SERVICE</code> starts one now.
      </Empty>
    );
  }
  return (
    <div className="wide" role="region" tabIndex={0} aria-label="Runs; scrolls sideways">
      <table className="operations">
        <thead>
          <tr>
            {["Service", ...(isOfOneTable ? [] : ["Table"]), "Outcome", "Why", "Started", "Waited", "Took", "Spark job (expected)", "Files", "Bytes", "Tries", "By"].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <tr key={`${one.dag_id} ${one.run_id} ${one.table_id}`}>
              <td className="nowrap">
                <i className="swatch" style={{ background: hue(one.service) }} />
                <RunLink runId={one.run_id} dagId={one.dag_id}>
                  {title(one.service)}
                </RunLink>
              </td>
              {!isOfOneTable && (
                <td className="nowrap">
                  <Link to={`/plugin/lake/tables/${encodeURIComponent(one.table_id)}`}>{[one.database, one.table_name || one.table_id].filter(Boolean).join(".")}</Link>
                </td>
              )}
              <td>
                <StateChip state={isMarked(one) ? "new" : (CHIPS[one.state] ?? "new")} word={outcomeOf(one)} />
                {one.state === "failed" && <RetryAction dagId={one.dag_id} runId={one.run_id} service={one.service} />}
              </td>
              <td className="why">{whyOf(one)}</td>
              <td className="nowrap" title={moment(one.created_ms, zone)}>
                {ago(one.created_ms, now)}
              </td>
              <td className="number">{one.started_ms === null ? "" : duration(one.started_ms - one.created_ms)}</td>
              <td className="number">{one.started_ms === null ? "" : duration((one.ended_ms ?? now) - one.started_ms)}</td>
              <td className="number" title={expectation(one)}>
                {one.job_s > 0 ? duration(one.job_s * 1000) : ""}
                {one.expected_s === null ? "" : ` (${duration(one.expected_s * 1000)})`}
              </td>
              <td className="number nowrap">{change(one.files_in, one.files_out, count)}</td>
              <td className="number nowrap">{change(one.bytes_in, one.bytes_out, bytes)}</td>
              <td className="number">{one.tries || ""}</td>
              <td>{one.by}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What a run was expected to cost when it was created; shown next to what it took. */
export function expectation(one: Operation): string {
  if (one.expected_s === null) return "";
  const span = `${duration((one.expected_low_s ?? one.expected_s) * 1000)} to ${duration((one.expected_high_s ?? one.expected_s) * 1000)}`;
  const written = one.expected_bytes === null ? "" : `, ${bytes(one.expected_bytes)} written`;
  return `expected: ${duration(one.expected_s * 1000)} (${span})${written}`;
}
