// What services cost and brought, next to what was predicted.
import { useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "react-router-dom";

import { address, get, type Bill, type BillLine } from "../api";
import { Missing } from "../away";
import { bytes, coreHours, count, plural } from "../format";
import { findTwins, title } from "../names";
import { Empty, Panel, useTitle } from "../parts";

const EVERY_MS = 60_000;
const BY = ["table", "owner", "label", "service"];
const DAYS = [1, 7, 30];

type Column = Exclude<keyof BillLine, "base_path">;

const hours = (seconds: number) => coreHours(seconds / 3600);

/** Name, what is printed, and under it what was predicted or what it is made of. */
const COLUMNS: [Column, string, (one: BillLine) => string, ((one: BillLine) => string)?][] = [
  ["core_s", "Core hours", (one) => hours(one.core_s), (one) => `predicted ${hours(one.expected_core_s)}`],
  ["rewritten_bytes", "Rewritten", (one) => bytes(one.rewritten_bytes), (one) => `predicted ${bytes(one.expected_bytes)}`],
  ["files_saved", "Files saved", (one) => count(one.files_saved), (one) => `${count(one.files_before)} before, ${count(one.files_after)} after`],
  ["runs", "Ended runs", (one) => count(one.runs)],
  ["failed_tries", "Failed tries", (one) => count(one.failed_tries)],
];

export function BillPage() {
  useTitle("Bill");
  const [params, setParams] = useSearchParams();
  const by = BY.find((one) => one === params.get("by")) ?? "table";
  const days = DAYS.find((one) => String(one) === params.get("days")) ?? 30;
  const sort = params.get("sort") === "name" ? "name" : (COLUMNS.find(([one]) => one === params.get("sort"))?.[0] ?? "core_s");
  const isReverse = params.get("reverse") === "true";
  const change = (next: Record<string, string>) => setParams({ by, days: String(days), sort, reverse: String(isReverse), ...next }, { replace: true });
  const bill = useQuery({
    queryKey: ["bill", by, days],
    queryFn: ({ signal }) => get<Bill>("bill", { by, days }, signal),
    refetchInterval: EVERY_MS,
    placeholderData: (before) => before,
  });
  const found = bill.data;
  return (
    <>
      <h1 className="visually-hidden">Bill</h1>
      <Missing of={bill} />
      <Panel
        name={`What services cost in ${days === 1 ? "the day since midnight, UTC" : `${days} days`}`}
        aside={
          <a className="button" href={address("bill.csv", { by, days })} download>
            CSV
          </a>
        }
      >
        <div className="filters">
          <label>
            By
            <select value={by} onChange={(event) => change({ by: event.target.value })}>
              {BY.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          <label>
            Days
            <select value={days} onChange={(event) => change({ days: event.target.value })}>
              {DAYS.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          {found !== undefined && (
            <p className="note" role="status">
              {found.is_cut ? `the ${count(found.lines.length)} most expensive lines; there are more` : plural(found.lines.length, "line")}
            </p>
          )}
        </div>
        {found !== undefined && found.lines.length === 0 && <Empty>No service has ended in these days.</Empty>}
        {found !== undefined && found.lines.length > 0 && (
          <Lines bill={found} sort={sort} isReverse={isReverse} choose={(next) => change({ sort: next, reverse: String(next === sort && !isReverse) })} />
        )}
      </Panel>
    </>
  );
}

function Lines({ bill, sort, isReverse, choose }: { bill: Bill; sort: Column; isReverse: boolean; choose: (next: Column) => void }) {
  const order = (one: BillLine, other: BillLine) => (sort === "name" ? one.name.localeCompare(other.name) : other[sort] - one[sort]);
  const lines = [...bill.lines].sort((one, other) => (isReverse ? order(other, one) : order(one, other)));
  const twins = findTwins(bill.lines);
  const head = (column: Column, name: string) => {
    const isDown = (column !== "name") !== isReverse;
    return (
      <th key={column} aria-sort={column === sort ? (isDown ? "descending" : "ascending") : undefined}>
        <button type="button" className="sort" onClick={() => choose(column)}>
          {name} <span aria-hidden="true">{column === sort ? (isDown ? "↓" : "↑") : ""}</span>
        </button>
      </th>
    );
  };
  return (
    <div className="wide" role="region" tabIndex={0} aria-label="Bill">
      <table className="bill">
        <thead>
          <tr>
            {head("name", bill.by.charAt(0).toUpperCase() + bill.by.slice(1))}
            {COLUMNS.map(([column, name]) => head(column, name))}
          </tr>
        </thead>
        <tbody>
          {lines.map((one) => (
            <tr key={`${one.base_path} ${one.name}`}>
              <td className="name" title={one.base_path}>
                <Name by={bill.by} one={one} />
                {twins.has(one.name) && <small>{one.base_path}</small>}
              </td>
              {COLUMNS.map(([column, , value, under]) => (
                <td key={column} className="number">
                  {value(one)}
                  {under !== undefined && <small>{under(one)}</small>}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Name({ by, one: { name, base_path } }: { by: string; one: BillLine }) {
  if (name === "") {
    return <span className="muted">none</span>;
  }
  if (by === "table" || by === "owner") {
    return <Link to={`/plugin/lake?${new URLSearchParams(by === "table" ? { q: base_path } : { owner: name }).toString()}`}>{name}</Link>;
  }
  return <>{by === "service" ? title(name) : name}</>;
}
