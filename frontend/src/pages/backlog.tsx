import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { get, type Backlog, type Benefit, type Budget, type Waiting } from "../api";
import { Missing } from "../away";
import { ago, bytes, coreHours, count, duration, moment, plural, useNow, useZone } from "../format";
import { Bar, hue, StateChip, title } from "../names";
import { Empty, Panel, Alert, useTitle } from "../parts";

const EVERY_MS = 15_000;

/** Why a service of each class is urgent, or not, as docs/services.md has it. */
const CLASSES: Record<string, string> = {
  unblocks: "writers or all other services of the table wait for it",
  growing: "storage or the timeline grows",
  overdue: "twice past its rule, or planned",
  usual: "due by its rule",
  mass: "rewrites or searches a whole table",
};

function brings(one: Benefit): string {
  const parts = [
    one.log_bytes > 0 ? `${bytes(one.log_bytes)} of log files merged` : "",
    one.files > 0 ? `${plural(Math.ceil(one.files), "file")} less` : "",
    one.instants > 0 ? `${plural(Math.ceil(one.instants), "instant")} less` : "",
    one.freed_bytes > 0 ? `${bytes(one.freed_bytes)} freed` : "",
  ];
  return parts.filter(Boolean).join(", ");
}

const PRESSURES = { ok: "healthy", slow: "waiting", stop: "failing" } as const;

export function BacklogPage() {
  useTitle("Backlog");
  const backlog = useQuery({
    queryKey: ["backlog"],
    queryFn: ({ signal }) => get<Backlog>("backlog", {}, signal),
    refetchInterval: EVERY_MS,
  });
  const found = backlog.data;
  return (
    <>
      <h1 className="visually-hidden">Backlog</h1>
      <Missing of={backlog} />
      {found?.problems.map((problem) => <Alert key={problem}>{problem}</Alert>)}
      {found !== undefined && (
        <>
          <Panel name="Due, in the order in which it starts" aside={<HowMany rows={found.waiting} most={found.most} />}>
            {found.waiting.length === 0 ? (
              <Empty>
                Nothing waits for a budget. A due service starts at once where the tables file sets no budget and no limit that bounds it.
              </Empty>
            ) : (
              <Rows rows={found.waiting} name="Due services" />
            )}
          </Panel>
          <Panel name="Daily budgets">
            {found.budgets.length > 0 ? (
              <Budgets rows={found.budgets} />
            ) : (
              <Empty>
                {found.is_limited
                  ? "Budgets count the tables of all teams, so their figures are not shown to you."
                  : "The tables file sets no budget and no limit: nothing bounds how much runs at once or in a day."}
              </Empty>
            )}
          </Panel>
          <Panel name="Due on tables that are only observed" aside={<HowMany rows={found.observed} most={found.most} />}>
            {found.observed.length === 0 ? (
              <Empty>No observed table has a service that is due.</Empty>
            ) : (
              <Rows rows={found.observed} name="Due services of observed tables" isObserved />
            )}
          </Panel>
        </>
      )}
    </>
  );
}

function HowMany({ rows, most }: { rows: Waiting[]; most: number }) {
  return <p className="note" role="status">{rows.length >= most ? `the first ${count(most)}` : plural(rows.length, "service")}</p>;
}

function Rows({ rows, name, isObserved = false }: { rows: Waiting[]; name: string; isObserved?: boolean }) {
  const now = useNow();
  const zone = useZone();
  const columns = ["Rank", "Table", "Service", "Urgency", "Duration", "Output", "Benefit", "Due since"];
  return (
    <div className="wide" role="region" tabIndex={0} aria-label={name}>
      <table className="backlog">
        <thead>
          <tr>
            {[...columns, ...(isObserved ? [] : ["Ahead of it", "Expected start"]), "Why"].map((one) => (
              <th key={one}>{one}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <tr key={`${one.table_id} ${one.service}`}>
              <td className="number">{count(one.rank)}</td>
              <td className="name">
                <Link to={`/plugin/lake/tables/${encodeURIComponent(one.table_id)}`}>{[one.database, one.table].filter(Boolean).join(".")}</Link>
              </td>
              <td className="nowrap">
                <i className="swatch" style={{ background: hue(one.service) }} />
                {title(one.service)}
              </td>
              <td className="urgency">
                {one.urgency}
                <small>{CLASSES[one.urgency]}</small>
              </td>
              <td className="number" title={basis(one)}>
                {one.seconds === null ? "not known" : duration(one.seconds * 1000)}
                <small>{span(one.seconds_low, one.seconds_high, (value) => duration(value * 1000))}</small>
              </td>
              <td className="number" title={basis(one)}>
                {one.bytes === null ? "not known" : bytes(one.bytes)}
                <small>{span(one.bytes_low, one.bytes_high, bytes)}</small>
              </td>
              <td className="brings">{one.benefit === null ? "not known" : brings(one.benefit)}</td>
              <td className="nowrap" title={moment(one.since_ms, zone)}>
                {ago(one.since_ms, now)}
              </td>
              {!isObserved && (
                <>
                  <td>
                    {one.short_of === "" ? "no budget" : one.ahead === 0 ? "none" : plural(one.ahead, "service")}
                    {one.short_of !== "" && <small>{one.short_of}</small>}
                  </td>
                  <td className="nowrap" title={moment(one.expected_ms, zone)}>
                    {one.expected_ms === null ? "not known" : one.expected_ms <= now ? "at its next evaluation" : ago(one.expected_ms, now).replace("in ", "in about ")}
                  </td>
                </>
              )}
              <td className="why">
                {isObserved ? one.due_because : one.why}
                {!isObserved && one.due_because !== "" && <small>{`due: ${one.due_because}`}</small>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function span(low: number | null, high: number | null, print: (value: number) => string): string {
  return low === null || high === null ? "" : `${print(low)} to ${print(high)}`;
}

function basis(one: Waiting): string {
  return one.basis === "" ? "" : `by ${one.basis}; four of five outcomes lie between the two`;
}

function Budgets({ rows }: { rows: Budget[] }) {
  return (
    <div className="wide" role="region" tabIndex={0} aria-label="Budgets">
      <table className="budgets">
        <thead>
          <tr>
            {["Budget", "Pressure", "Slots", "Core hours spent", "Bytes written", "Waits", "Arrived in 24 h", "Would be enough"].map((one) => (
              <th key={one}>{one}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((one) => (
            <tr key={one.name}>
              <td className="name">{one.name}</td>
              <td title={one.text}>
                <StateChip state={PRESSURES[one.pressure]} word={one.pressure} />
              </td>
              <td className="number">{one.slots === null ? "no bound" : count(one.slots)}</td>
              <td>
                <Used name={`core hours of ${one.name}`} used={one.spent_core_hours} most={one.core_hours_per_day} print={coreHours} />
              </td>
              <td>
                <Used name={`bytes of ${one.name}`} used={one.spent_bytes} most={one.bytes_per_day} print={bytes} />
              </td>
              <td className="number">
                {plural(one.waiting, "service")}
                <small>{`${coreHours(one.waiting_core_hours)} core hours, ${bytes(one.waiting_bytes)}`}</small>
              </td>
              <td className="number">
                {`${coreHours(one.arrived_core_hours)} core hours`}
                <small>{bytes(one.arrived_bytes)}</small>
              </td>
              <td>{one.pressure === "ok" ? "the budget is enough" : wanted(one)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Used({ name, used, most, print }: { name: string; used: number; most: number | null; print: (value: number) => string }) {
  if (most === null) {
    return <>no bound</>;
  }
  const text = `${print(used)} of ${print(most)}`;
  return (
    <>
      <span className="nowrap">{text}</span>
      <Bar share={used / Math.max(most, 1e-9)} colour="var(--s-compaction)" label={`${text} ${name}`} />
    </>
  );
}

function wanted(one: Budget): string {
  const parts = [
    one.needed_slots === null ? "" : plural(one.needed_slots, "slot"),
    one.needed_core_hours_per_day === null ? "" : `${coreHours(one.needed_core_hours_per_day)} core hours a day`,
    one.needed_bytes_per_day === null ? "" : `${bytes(one.needed_bytes_per_day)} a day`,
  ];
  return parts.filter(Boolean).join(", ");
}
