import { keepPreviousData, useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";
import { Link, useNavigate, useSearchParams } from "react-router-dom";

import { useUser } from "../actions";
import { get, type BacklogHistory, type Day, type Hour, type Overview, type Row, type State, type Tables } from "../api";
import { Missing } from "../away";
import { BulkBar } from "../bulk";
import { BacklogChart, HoursChart } from "../charts";
import { ROOT } from "../client";
import { ago, bytes, count, duration, moment, percent, plural, useNow, useZone } from "../format";
import { Bar, findTwins, hue, Marks, meterText, nearest, share, STATES, Said, StateChip, title } from "../names";
import { Empty, Panel, Alert, useTitle, useTyped } from "../parts";

const EVERY_MS = 10_000;
const PAGE = 100;

export function LakePage() {
  useTitle("");
  const overview = useQuery({
    queryKey: ["overview"],
    queryFn: ({ signal }) => get<Overview>("overview", {}, signal),
    refetchInterval: EVERY_MS,
  });
  const found = overview.data;
  return (
    <>
      <h1 className="visually-hidden">Lake</h1>
      {found?.problems.map((problem) => <Alert key={problem}>{problem}</Alert>)}
      <Missing of={overview} />
      {found !== undefined && found.tables > 0 && <Tiles found={found} />}
      <TableList overview={found} />
      {found !== undefined && found.tables > 0 && (
        <div className="charts">
          <BacklogOverTime />
          <Panel name="Services in the last 24 hours" aside={<HoursNote hours={found.hours} />}>
            <HoursChart hours={found.hours} />
          </Panel>
          <Compared days={found.days} weeks={found.weeks} />
        </div>
      )}
      <p className="note">
        {"Programs ask the manager: "}
        <a className="in-text" href={new URL("v1/hoodie/docs", document.baseURI).href}>its API</a>
      </p>
    </>
  );
}

const FIGURES: [string, (day: Day) => string][] = [
  ["Ended runs", (day) => count(day.runs)],
  ["Failed tries", (day) => count(day.failed_tries)],
  ["Core time", (day) => duration(day.core_s * 1000)],
  ["Rewritten", (day) => bytes(day.rewritten_bytes)],
  ["Due and waiting at its end", (day) => count(day.waiting)],
  ["Log files at its end", (day) => bytes(day.log_bytes)],
];

/** The last 24 hours next to the 24 before, or seven days. */
function Compared({ days, weeks }: { days: Day[]; weeks: Day[] }) {
  const zone = useZone();
  const [isWeek, setWeek] = useState(false);
  const hasWeeks = weeks.length === 2;
  const [last, before] = isWeek && hasWeeks ? weeks : days;
  if (last === undefined || before === undefined) {
    return null; // not recorded for two days yet, or figures that count all tables
  }
  const span = isWeek && hasWeeks ? "7 d" : "24 h";
  return (
    <Panel
      name={span === "7 d" ? "A week next to the week before" : "A day next to the day before"}
      aside={
        <div className="zooms">
          <p className="note">{`until ${moment(last.until_ms, zone)}`}</p>
          {hasWeeks && (
            <div role="group" aria-label="Compare">
              {SPANS.map(([name, value]) => (
                <button type="button" key={name} aria-pressed={span === name} onClick={() => setWeek(value === 7)}>
                  {name}
                </button>
              ))}
            </div>
          )}
        </div>
      }
    >
      <table>
        <thead>
          <tr>
            <th scope="col">All tables</th>
            <th scope="col">{`Last ${span}`}</th>
            <th scope="col">{`${span} before`}</th>
          </tr>
        </thead>
        <tbody>
          {FIGURES.map(([name, show]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td className="number">{show(last)}</td>
              <td className="number">{show(before)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Panel>
  );
}

const SPANS: [string, number][] = [
  ["24 h", 1],
  ["7 d", 7],
];

function BacklogOverTime() {
  const [days, setDays] = useState(1);
  const [kind, setKind] = useState<"log_bytes" | "core_hours">("log_bytes");
  const history = useQuery({
    queryKey: ["backlog-history", days],
    queryFn: ({ signal }) => get<BacklogHistory>("backlog/history", { days }, signal),
    refetchInterval: 60_000,
    placeholderData: keepPreviousData,
  });
  const found = history.data;
  if (found === undefined) {
    return <Missing of={history} />;
  }
  if (found.is_limited) {
    return null; // its figures count all tables
  }
  return (
    <Panel
      name="What waits, over time"
      aside={
        <div className="zooms">
          <div role="group" aria-label="What waits">
            <button type="button" aria-pressed={kind === "log_bytes"} onClick={() => setKind("log_bytes")}>
              log files
            </button>
            <button type="button" aria-pressed={kind === "core_hours"} onClick={() => setKind("core_hours")}>
              core hours
            </button>
          </div>
          <div role="group" aria-label="How far back">
            {SPANS.map(([name, value]) => (
              <button type="button" key={name} aria-pressed={days === value} onClick={() => setDays(value)}>
                {name}
              </button>
            ))}
          </div>
        </div>
      }
    >
      <BacklogChart rows={found.rows} days={days} kind={kind} />
    </Panel>
  );
}

function HoursNote({ hours }: { hours: Hour[] }) {
  const failed = hours.filter((one) => one.state === "failed").reduce((sum, one) => sum + one.runs, 0);
  return <p className="note">{failed === 0 ? "no run failed" : <Link to={`${ROOT}/operations?state=failed`}>{`${plural(failed, "run")} failed`}</Link>}</p>;
}

function Tiles({ found }: { found: Overview }) {
  const now = useNow();
  const of = (state: State) => found.states.find((one) => one.state === state)?.tables ?? 0;
  const attention = found.states.filter((one) => one.needs_attention).reduce((sum, one) => sum + one.tables, 0);
  const runs = found.hours.reduce((sum, one) => sum + one.runs, 0);
  const sum = (value: (one: Hour) => number) => found.hours.reduce((total, one) => total + value(one), 0);
  const jobS = sum((one) => one.job_s);
  return (
    <dl className="tiles">
      <Tile
        name="Tables"
        value={count(found.tables)}
        note={[
          plural(of("healthy"), "is healthy", "are healthy"),
          ...found.marked.filter((one) => one.tables > 0).map((one) => `${count(one.tables)} ${one.mark}`),
        ].join(", ")}
      />
      <Tile
        name="Need attention"
        value={count(attention)}
        tone={attention > 0 ? "bad" : "good"}
        to={attention === 0 ? undefined : `?${found.states.filter((one) => one.needs_attention).map((one) => `state=${one.state}`).join("&")}`}
        note={
          attention === 0
            ? "nothing waits for you"
            : found.states
                .filter((one) => one.needs_attention && one.tables > 0)
                .map((one) => `${count(one.tables)} ${one.state}`)
                .join(", ")
        }
      />
      <Tile name="Running now" to="?state=running" value={count(of("running"))} note={`${count(of("waiting"))} due and waiting`} />
      <Tile name="Log files" to="?sort=backlog" value={bytes(found.backlog_bytes)} note="that no compaction has merged" />
      <Tile
        name="Longest wait"
        value={found.oldest_due_ms === null ? "none" : duration(now - found.oldest_due_ms)}
        note={
          found.oldest_due_ms !== null
            ? "since a service has been due that does not run"
            : found.oldest_dirty_ms === null
              ? "every commit is evaluated"
              : `a commit has waited ${duration(now - found.oldest_dirty_ms)} for an evaluation`
        }
      />
      <Tile name="Runs in 24 h" to={`${ROOT}/operations`} value={count(runs)} note={`${plural(sum((one) => one.files_in), "file")} merged or deleted`} />
      <Tile
        name="Rewritten in 24 h"
        value={bytes(sum((one) => one.bytes_out))}
        note={jobS < 5400 ? `${plural(Math.round(jobS / 60), "minute")} of Spark jobs` : `${plural(jobS / 3600, "hour")} of Spark jobs`}
      />
    </dl>
  );
}

interface TileText {
  name: string;
  value: string;
  note: string;
  tone?: string;
  /** Where the number comes from. */
  to?: string;
}

function Tile({ name, value, note, tone = "", to }: TileText) {
  return (
    <div className={`tile ${tone}`}>
      <dt>{to === undefined ? name : <Link to={to}>{name}</Link>}</dt>
      <dd>
        <strong>{value}</strong>
        <span>{note}</span>
      </dd>
    </div>
  );
}

// --- The list: the worst first, 100 rows a request, only the rows in sight in the document

function TableList({ overview }: { overview: Overview | undefined }) {
  const [params, setParams] = useSearchParams();
  const states = params.getAll("state");
  const sort = params.get("sort") ?? "worst";
  const reverse = params.get("reverse") ?? "";
  const database = params.get("database") ?? "";
  const owner = params.get("owner") ?? "";
  const mark = params.get("mark") ?? "";
  const text = params.get("q") ?? "";
  // The router knows of a change only when it has drawn it: on a busy machine a search that is typed meanwhile would undo
  // the choice before it.
  const latest = useRef(params);
  useEffect(() => {
    latest.current = params;
  }, [params]);
  const changeAll = (changes: Record<string, string[]>) => {
    const after = new URLSearchParams(latest.current);
    for (const [name, values] of Object.entries(changes)) {
      after.delete(name);
      for (const value of values.filter(Boolean)) {
        after.append(name, value);
      }
    }
    latest.current = after;
    setParams(after, { replace: true });
  };
  const change = (name: string, values: string[]) => changeAll({ [name]: values });
  const [typed, setTyped] = useTyped(text, (next) => change("q", [next]));
  const tables = useInfiniteQuery({
    queryKey: ["tables", text, states, database, owner, mark, sort, reverse],
    queryFn: ({ pageParam, signal }) =>
      get<Tables>("tables", { q: text, state: states, database, owner, mark, sort, reverse, after: pageParam, limit: PAGE }, signal),
    initialPageParam: "",
    getNextPageParam: (last) => (last.next === "" ? undefined : last.next),
    // A long list stays as it was read: its rows would move under the reader.
    refetchInterval: ({ state }) => ((state.data?.pages.length ?? 0) <= 2 ? EVERY_MS : false),
    placeholderData: keepPreviousData,
  });
  const rows = useMemo(() => tables.data?.pages.flatMap((page) => page.rows) ?? [], [tables.data]);
  const total = tables.data?.pages[0]?.total ?? 0;
  const user = useUser();
  const canAct = user?.may_run === true || user?.may_pause === true;
  const filter = { q: text, state: states, database, owner, mark: mark === "" ? null : mark };
  const [picks, setPicks] = useState<ReadonlySet<string>>(new Set());
  // All that match, as long as the filter is what it was.
  const [allOf, setAllOf] = useState("");
  const isAll = allOf === JSON.stringify(filter);
  const pick = (tableId: string) =>
    setPicks((before) => {
      const after = new Set(before);
      if (!after.delete(tableId)) {
        after.add(tableId);
      }
      return after;
    });
  const chooseAll = () => setAllOf(isAll ? "" : JSON.stringify(filter));
  return (
    <Panel name="Tables" aside={<p className="note" role="status">{tables.data === undefined ? "" : plural(total, "table")}</p>}>
      <div className="filters">
        <label className="search">
          <span className="visually-hidden">Search by name, database or path</span>
          <input
            type="search"
            placeholder="Search by name, database or path"
            value={typed}
            onChange={(event) => setTyped(event.target.value)}
          />
        </label>
        <div className="facets" role="group" aria-label="States">
          {STATES.map((state) => {
            const tablesOf = overview?.states.find((one) => one.state === state)?.tables ?? 0;
            const isOn = states.includes(state);
            return tablesOf === 0 && !isOn ? null : (
              <button
                key={state}
                type="button"
                className={`facet st-${state}`}
                aria-pressed={isOn}
                onClick={() => change("state", isOn ? states.filter((one) => one !== state) : [...states, state])}
              >
                <span className="dot" aria-hidden="true" />
                {state} <b>{count(tablesOf)}</b>
              </button>
            );
          })}
          {overview?.marked.map((one) =>
            one.tables === 0 && mark !== one.mark ? null : (
              <button
                key={one.mark}
                type="button"
                className="facet st-new"
                aria-pressed={mark === one.mark}
                onClick={() => change("mark", [mark === one.mark ? "" : one.mark])}
              >
                {one.mark} <b>{count(one.tables)}</b>
              </button>
            ),
          )}
        </div>
        <Facet
          name="Database"
          chosen={database}
          found={(overview?.databases ?? []).map((one) => [one.database, one.tables])}
          choose={(value) => change("database", [value])}
        />
        <Facet
          name="Owner"
          chosen={owner}
          found={(overview?.owners ?? []).map((one) => [one.owner, one.tables])}
          choose={(value) => change("owner", [value])}
        />
        <label>
          <span>Order</span>
          <select value={sort} onChange={(event) => changeAll({ sort: [event.target.value], reverse: [] })}>
            <option value="worst">worst first</option>
            <option value="backlog">most log files first</option>
            <option value="size">largest first</option>
            <option value="commit">longest without a commit first</option>
            <option value="name">by name</option>
          </select>
        </label>
      </div>
      {canAct && (
        <BulkBar
          choice={isAll ? { matching: filter } : { table_ids: [...picks] }}
          tables={isAll ? total : picks.size}
          matching={total}
          chooseMatching={chooseAll}
          clear={() => {
            setPicks(new Set());
            setAllOf("");
          }}
        />
      )}
      <Missing of={tables} />
      {tables.data !== undefined && total === 0 && <Nothing isFiltered={overview !== undefined && overview.tables > 0} />}
      {rows.length > 0 && (
        <Rows
          rows={rows}
          total={total}
          order={{ sort, isReverse: reverse !== "" }}
          choose={(next) => changeAll({ sort: [next.sort], reverse: [next.isReverse ? "true" : ""] })}
          picking={canAct ? { picks, isAll, pick, pickAll: chooseAll } : undefined}
          isLast={!tables.hasNextPage}
          onEnd={() => {
            if (tables.hasNextPage && !tables.isFetchingNextPage) {
              void tables.fetchNextPage();
            }
          }}
        />
      )}
    </Panel>
  );
}

interface Choice {
  name: string;
  chosen: string;
  /** Values with how many tables each has. */
  found: [string, number][];
  choose: (value: string) => void;
}

function Facet({ name, chosen, found, choose }: Choice) {
  if (found.length === 0 && chosen === "") {
    return null;
  }
  const isListed = chosen === "" || found.some(([value]) => value === chosen);
  return (
    <label>
      <span>{name}</span>
      <select value={chosen} onChange={(event) => choose(event.target.value)}>
        <option value="">all</option>
        {!isListed && <option value={chosen}>{chosen}</option>}
        {found.map(([value, tables]) => (
          <option key={value} value={value}>{`${value} (${count(tables)})`}</option>
        ))}
      </select>
    </label>
  );
}

function Nothing({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) {
    return <Empty>No table matches. Remove a filter, or search for a part of a name or path.</Empty>;
  }
  return (
    <div className="empty">
      <p>No table is registered yet. Either</p>
      <ul>
        <li>
          point a writer to the manager: its next commit registers its table. <code>airflow lake init --table PATH</code> prints the settings that it needs;
        </li>
        <li>
          or name tables, or a root to search, in the tables file. <code>airflow lake init --discover ROOT</code> prints one.
        </li>
      </ul>
    </div>
  );
}

const ROW_PX = 62;
/** Head, class, and the order that the head chooses. */
const COLUMNS: [string, string, string?][] = [
  ["State", "c-state", "worst"],
  ["Table", "", "name"],
  ["What is going on", ""],
  ["Next service", ""],
  ["Last service", "c-done"],
  ["Log files", "", "backlog"],
  ["Base files", "c-files", "size"],
  ["Rewritten", "c-trend"],
  ["Last commit", "", "commit"],
];
/** Orders that begin with the greatest value. */
const DOWN = ["worst", "backlog", "size"];

interface Order {
  sort: string;
  isReverse: boolean;
}

/** Which rows are chosen for an action; undefined where the user may do none. */
interface Picking {
  picks: ReadonlySet<string>;
  isAll: boolean;
  pick: (tableId: string) => void;
  pickAll: () => void;
}

function Head({ order, choose, picking }: { order: Order; choose: (next: Order) => void; picking: Picking | undefined }) {
  return (
    <div role="row" className="row head" aria-rowindex={1}>
      {COLUMNS.map(([name, of, sort]) => {
        const isOn = sort !== undefined && sort === order.sort;
        const isDown = DOWN.includes(order.sort) !== order.isReverse;
        return (
          <span role="columnheader" key={name} className={of} aria-sort={isOn ? (isDown ? "descending" : "ascending") : undefined}>
            {of === "c-state" && picking !== undefined && (
              <label className="pick">
                <input type="checkbox" aria-label="Choose all that match" checked={picking.isAll} onChange={picking.pickAll} />
              </label>
            )}
            {sort === undefined ? (
              name
            ) : (
              <button type="button" className="sort" onClick={() => choose({ sort, isReverse: isOn && !order.isReverse })}>
                {name} <span aria-hidden="true">{isOn ? (isDown ? "↓" : "↑") : ""}</span>
              </button>
            )}
          </span>
        );
      })}
    </div>
  );
}

interface Listed {
  rows: Row[];
  total: number;
  order: Order;
  choose: (next: Order) => void;
  picking: Picking | undefined;
  isLast: boolean;
  onEnd: () => void;
}

function Rows({ rows, total, order, choose, picking, isLast, onEnd }: Listed) {
  const ref = useRef<HTMLDivElement>(null);
  const navigate = useNavigate();
  const [chosen, setChosen] = useState(0);
  const list = useVirtualizer({
    count: rows.length,
    getScrollElement: () => ref.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
  });
  const twins = useMemo(() => findTwins(rows.map((row) => ({ name: fullName(row), base_path: row.base_path }))), [rows]);
  const shown = list.getVirtualItems();
  const last = shown.at(-1)?.index ?? 0;
  useEffect(() => {
    if (last >= rows.length - 30 && !isLast) {
      onEnd();
    }
  }, [last, rows.length, isLast, onEnd]);
  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -rows.length, End: rows.length };
    const step = steps[event.key];
    if (step !== undefined) {
      event.preventDefault();
      const next = Math.max(0, Math.min(rows.length - 1, chosen + step));
      setChosen(next);
      list.scrollToIndex(next);
      requestAnimationFrame(() => ref.current?.querySelector<HTMLElement>(`[data-index="${next}"] a`)?.focus({ preventScroll: true }));
    }
    if (event.key === " " && picking !== undefined && !picking.isAll && !(event.target instanceof HTMLInputElement)) {
      event.preventDefault();
      const row = rows[chosen];
      if (row !== undefined) {
        picking.pick(row.table_id);
      }
    }
    if (event.key === "Enter" && event.target === ref.current) {
      const row = rows[chosen];
      if (row !== undefined) {
        void navigate(`/plugin/lake/tables/${encodeURIComponent(row.table_id)}`);
      }
    }
  };
  return (
    <div className="table-list" role="table" aria-label="Tables" aria-rowcount={total + 1}>
      <div role="rowgroup">
        <Head order={order} choose={choose} picking={picking} />
      </div>
      <div
        className="scroller"
        ref={ref}
        tabIndex={0}
        role="rowgroup"
        aria-label={`Rows; arrow keys move, Enter opens${picking === undefined ? "" : ", Space chooses"}`}
        onKeyDown={onKey}
        style={{ height: Math.min(list.getTotalSize(), 620) + 2 }}
      >
        <div role="presentation" style={{ height: list.getTotalSize(), position: "relative" }}>
          {shown.map((item) => {
            const row = rows[item.index];
            return row === undefined ? null : (
              <Line
                key={row.table_id}
                row={row}
                index={item.index}
                top={item.start}
                measure={list.measureElement}
                picking={picking}
                isChosen={item.index === chosen}
                isTwin={twins.has(fullName(row))}
                onFocus={() => setChosen(item.index)}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

function fullName(row: Row): string {
  return `${row.database}.${row.name}`;
}

interface Place {
  row: Row;
  index: number;
  top: number;
  /** A row with a remedy is as high as its text. */
  measure: (element: HTMLElement | null) => void;
  picking: Picking | undefined;
  /** Tab stops at one row of the list: it would never leave ten thousand. */
  isChosen: boolean;
  /** Another table has its name, so that only the path says which it is. */
  isTwin: boolean;
  onFocus: () => void;
}

function Line({ row, index, top, measure, picking, isChosen, isTwin, onFocus }: Place) {
  const now = useNow();
  const zone = useZone();
  const next = nearest(row.services);
  const worst = row.problems.find((one) => one.snoozed_until_ms === null);
  return (
    <div
      role="row"
      className="row"
      aria-rowindex={index + 2}
      data-index={index}
      ref={measure}
      style={{ transform: `translateY(${top}px)`, minHeight: ROW_PX }}
      onFocus={onFocus}
    >
      <span role="cell" className="c-state">
        {picking !== undefined && (
          <label className="pick">
            <input
              type="checkbox"
              aria-label={`Choose ${row.name}`}
              checked={picking.isAll || picking.picks.has(row.table_id)}
              disabled={picking.isAll}
              tabIndex={isChosen ? 0 : -1}
              onChange={() => picking.pick(row.table_id)}
            />
          </label>
        )}
        <StateChip state={row.state} />
      </span>
      <span role="cell" className="c-name">
        <Link to={`/plugin/lake/tables/${encodeURIComponent(row.table_id)}`} title={row.base_path} tabIndex={isChosen ? 0 : -1}>
          {row.name}
        </Link>
        <small className={isTwin ? "whole" : ""}>
          {[row.database, row.owner, isTwin ? row.base_path : ""].filter(Boolean).join(" · ") || row.base_path}
        </small>
      </span>
      <span role="cell" className="c-why" title={row.headline}>
        <span className={worst?.remedy === "" ? "cause whole" : "cause"}><Said text={row.headline} /></span>
        {worst !== undefined && worst.remedy !== "" && <span className="remedy"><Said text={`${worst.remedy[0]?.toUpperCase() ?? ""}${worst.remedy.slice(1)}.`} /></span>}
        <Marks marks={row.marks} />
      </span>
      <span role="cell" className="c-meter">
        {next?.meter !== undefined && (
          <>
            <Bar share={share(next.meter)} colour={hue(next.service)} label={`${title(next.service)}: ${meterText(next.meter)}`} />
            <small>{`${title(next.service)}: ${meterText(next.meter)}`}</small>
          </>
        )}
        {next !== undefined && next.meter === undefined && <span>{`${title(next.service)}: ${next.state}`}</span>}
      </span>
      <span role="cell" className="c-done">
        {row.last_run !== null && (
          <>
            <span>{title(row.last_run.service)}</span>
            <small className={row.last_run.outcome === "failed" ? "bad" : ""} title={moment(row.last_run.ended_ms, zone)}>
              {`${OUTCOMES[row.last_run.outcome] ?? ""}${ago(row.last_run.ended_ms, now)}`}
            </small>
          </>
        )}
      </span>
      <span role="cell" className="c-size">
        <Sizes log={row.log_bytes} base={row.base_bytes} />
      </span>
      <span role="cell" className="c-files">
        {row.files > 0 && (
          <>
            <span>{bytes(row.file_bytes)}</span>
            <small>{`${plural(row.files, "file")} of ${bytes(row.file_bytes / row.files)}`}</small>
          </>
        )}
      </span>
      <span role="cell" className="c-trend">
        <Trend sizes={row.rewritten} />
      </span>
      <span role="cell" className="c-last" data-zone={zone}>
        {ago(row.last_commit_ms, now)}
      </span>
    </div>
  );
}

const OUTCOMES: Record<string, string> = { failed: "failed ", nothing_to_do: "nothing to do, " };

/** Log files over what they lie on: the part of the bar is what readers have to merge. */
function Sizes({ log, base }: { log: number; base: number }) {
  if (log === 0) {
    return <small>no log files</small>;
  }
  const text = base > 0 ? `${bytes(log)} in log files, ${percent(log / base)} of ${bytes(base)} in base files` : `${bytes(log)} in log files`;
  return (
    <>
      <span className="sizes" role="img" aria-label={text} title={text}>
        <i className="log" style={{ flexGrow: log }} />
        <i className="base" style={{ flexGrow: base }} />
      </span>
      <small>
        {bytes(log)}
        {base > 0 && <span>{`, ${percent(log / base)} of base`}</span>}
      </small>
    </>
  );
}

const TREND_PX = [64, 22] as const;

/** What the newest runs wrote, one bar each, the oldest on the left. */
function Trend({ sizes }: { sizes: number[] }) {
  const most = Math.max(...sizes);
  if (sizes.length < 2) {
    return sizes.length === 0 ? null : <small>{bytes(most)}</small>;
  }
  const [width, height] = TREND_PX;
  const step = width / 12;
  const bars = sizes.map((size, at) => {
    const tall = Math.max(1, (size / most) * height);
    return `M${(at * step).toFixed(1)} ${height}v${(-tall).toFixed(1)}h${(step - 1.5).toFixed(1)}v${tall.toFixed(1)}z`;
  });
  const text = `The last ${sizes.length} runs that rewrote files wrote ${bytes(Math.min(...sizes))} to ${bytes(most)}, the newest ${bytes(sizes.at(-1) ?? 0)}`;
  return (
    <svg className="trend" role="img" aria-label={text} width={width} height={height} viewBox={`0 0 ${width} ${height}`}>
      <title>{text}</title>
      <path d={bars.join("")} />
    </svg>
  );
}
