import { useQuery } from "@tanstack/react-query";
import { Link, useSearchParams } from "react-router-dom";

import { IndexAction, RunActions, TableActions } from "../actions";
import { get, HttpError, type Operations, type Policy, type Service, type Table, type Timeline } from "../api";
import { ago, bytes, count, moment, plural, useNow, useZone } from "../format";
import { Bar, hue, meterText, StateChip, title } from "../names";
import { Empty, Loading, Panel, RunLink, Trouble } from "../parts";
import { TimelineChart } from "../timeline";
import { OperationRows } from "./operations";

const EVERY_MS = 5_000;
const TABS = ["operations", "instants", "indexes", "replication", "doctor", "policy"] as const;
type Tab = (typeof TABS)[number];

export function TablePage({ tableId }: { tableId: string }) {
  const id = encodeURIComponent(tableId);
  const table = useQuery({
    queryKey: ["table", tableId],
    queryFn: ({ signal }) => get<Table>(`tables/${id}`, {}, signal),
    refetchInterval: EVERY_MS,
  });
  const timeline = useQuery({
    queryKey: ["timeline", tableId],
    queryFn: ({ signal }) => get<Timeline>(`tables/${id}/timeline`, {}, signal),
    refetchInterval: EVERY_MS,
  });
  const operations = useQuery({
    queryKey: ["operations", tableId],
    queryFn: ({ signal }) => get<Operations>("operations", { table_id: tableId, limit: 100 }, signal),
    refetchInterval: EVERY_MS,
  });
  if (table.isError) {
    const isUnknown = table.error instanceof HttpError && table.error.status === 404;
    return (
      <>
        <Crumbs name="not found" />
        <Trouble>{isUnknown ? `There is no table ${tableId}. It may have been forgotten; its next commit registers it again.` : table.error.message}</Trouble>
      </>
    );
  }
  if (table.data === undefined) {
    return <Loading />;
  }
  const found = table.data;
  return (
    <>
      <Crumbs name={found.row.name} />
      <Head table={found} type={timeline.data} />
      <Meters table={found} />
      <Panel name="Timeline" aside={timeline.data?.is_cut === true ? <p className="note">the newest 3,000 instants</p> : undefined}>
        {timeline.isError && <Trouble>{timeline.error.message}</Trouble>}
        {timeline.data === undefined && !timeline.isError && <Loading />}
        {timeline.data !== undefined && timeline.data.problem !== "" && <Trouble>{timeline.data.problem}</Trouble>}
        {timeline.data !== undefined && timeline.data.problem === "" && timeline.data.instants.length === 0 && (
          <Empty>The timeline has no instant yet: no writer has committed.</Empty>
        )}
        {timeline.data !== undefined && timeline.data.instants.length > 0 && (
          <TimelineChart timeline={timeline.data} table={found} operations={operations.data?.rows ?? []} />
        )}
      </Panel>
      <Tabs table={found} timeline={timeline.data} operations={operations.data} />
    </>
  );
}

function Crumbs({ name }: { name: string }) {
  return (
    <nav className="crumbs" aria-label="Breadcrumb">
      <Link to="/plugin/lake">Tables</Link>
      <span aria-hidden="true">/</span>
      <span aria-current="page">{name}</span>
    </nav>
  );
}

function Head({ table, type }: { table: Table; type: Timeline | undefined }) {
  const now = useNow();
  const zone = useZone();
  const { row } = table;
  return (
    <header className="table-head">
      <div className="title-line">
        <h1>
          {row.database !== "" && <span className="muted">{row.database}.</span>}
          {row.name}
        </h1>
        <StateChip state={row.state} />
        {table.is_paused && <StateChip state="waiting" word="paused" />}
        <TableActions table={table} />
      </div>
      <p className="headline">{row.headline}</p>
      {table.observed !== "" && <p className="note">{`The manager starts nothing on this table: ${table.observed}.`}</p>}
      <p className="facts">
        <code title="Base path">{row.base_path}</code>
        {row.owner !== "" && <span>owner {row.owner}</span>}
        {type !== undefined && type.table_type !== "" && (
          <span>{`${type.table_type === "MERGE_ON_READ" ? "merge on read" : "copy on write"}, version ${type.table_version}`}</span>
        )}
        <span title={moment(row.last_notice_ms, zone)}>{`last commit announced ${ago(row.last_notice_ms, now)}, ${plural(table.notices, "notice")}`}</span>
        <span title={moment(row.evaluated_ms, zone)}>{`evaluated ${ago(row.evaluated_ms, now)}`}</span>
        {row.next_evaluation_ms !== null && <span title={moment(row.next_evaluation_ms, zone)}>{`next ${ago(row.next_evaluation_ms, now)} at the latest`}</span>}
      </p>
      {table.problems.length > 0 && (
        <Trouble>
          <ul>
            {table.problems.map((problem) => (
              <li key={problem}>{problem}</li>
            ))}
          </ul>
        </Trouble>
      )}
    </header>
  );
}

function Meters({ table }: { table: Table }) {
  const now = useNow();
  const { services } = table;
  const active = services.filter((one) => one.is_active || one.state !== "healthy");
  const off = services.filter((one) => !active.includes(one));
  if (services.length === 0) {
    return null;
  }
  return (
    <section aria-label="Services" className="services">
      <h2 className="visually-hidden">Services</h2>
      <div className="cards">
        {active.map((one) => (
          <article key={one.service} className="card" style={{ borderTopColor: hue(one.service) }}>
            <h3>
              {title(one.service)}
              <StateChip state={one.state} word={word(one)} />
            </h3>
            {one.meters.map((meter) => (
              <div className="meter" key={meter.unit}>
                <Bar share={meter.found / meter.threshold} colour={hue(one.service)} label={`${title(one.service)}: ${meterText(meter)}`} />
                <span>{meterText(meter)}</span>
              </div>
            ))}
            {(one.meters.length === 0 || one.state !== "healthy") && <p>{one.run_reason !== "" && one.state !== "blocked" ? one.run_reason : one.reason}</p>}
            {one.run_id !== "" && (
              <p className="card-foot">
                <RunLink runId={one.run_id}>open the run</RunLink>
                {one.since_ms !== null && <span>{`since ${ago(one.since_ms, now)}`}</span>}
              </p>
            )}
            <RunActions table={table} service={one.service} />
          </article>
        ))}
      </div>
      {off.length > 0 && (
        <details className="off">
          <summary>{`${plural(off.length, "service")} switched off or without a rule: ${off.map((one) => title(one.service)).join(", ")}`}</summary>
          <dl>
            {off.map((one) => (
              <div key={one.service}>
                <dt>{title(one.service)}</dt>
                <dd>
                  {one.reason} <RunActions table={table} service={one.service} />
                </dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </section>
  );
}

function word(one: Service): string {
  if (one.run === "already_ran") {
    return "nothing to do";
  }
  if (one.state === "healthy") {
    return "not due";
  }
  return one.run === "abandoned" ? "given up" : one.state;
}

// --- Tabs

function Tabs({ table, timeline, operations }: { table: Table; timeline: Timeline | undefined; operations: Operations | undefined }) {
  const [params, setParams] = useSearchParams();
  const named = params.get("tab") as Tab | null;
  const tab: Tab = named !== null && TABS.includes(named) ? named : "operations";
  const troubles = timeline?.troubles.length ?? 0;
  const marks: Partial<Record<Tab, number>> = { replication: table.sinks.length, doctor: troubles + table.holes };
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
        {tab === "instants" && <Instants timeline={timeline} />}
        {tab === "indexes" && <Indexes table={table} timeline={timeline} />}
        {tab === "replication" && <Sinks table={table} />}
        {tab === "doctor" && <Doctor table={table} timeline={timeline} />}
        {tab === "policy" && <PolicyTab tableId={table.row.table_id} />}
      </div>
    </section>
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
                <StateChip state={one.state === "COMPLETED" ? "healthy" : one.is_hole ? "failing" : "running"} word={one.is_hole ? "hole" : one.state.toLowerCase()} />
              </td>
              <td className="number">{one.completed_ms === null ? "" : `${count((one.completed_ms - one.requested_ms) / 1000)} s`}</td>
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
      {decision !== undefined && <p>{decision.reason}</p>}
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

function Sinks({ table }: { table: Table }) {
  const now = useNow();
  const zone = useZone();
  if (table.sinks.length === 0) {
    return <Empty>The table is not replicated. `replication` in the tables file names sinks.</Empty>;
  }
  return (
    <div className="wide">
      <table>
        <thead>
          <tr>
            {["Sink", "State", "Cleaning leaves everything since", "Renewed", "Problem"].map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {table.sinks.map((one) => (
            <tr key={one.sink}>
              <td>{one.sink}</td>
              <td>
                <StateChip state={one.problem !== "" ? "failing" : one.state === "running" ? "running" : "healthy"} word={one.state} />
              </td>
              <td>{one.hold === "0" ? "the first commit" : moment(one.hold_ms, zone)}</td>
              <td>{ago(one.renewed_ms, now)}</td>
              <td>{one.problem}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Doctor({ table, timeline }: { table: Table; timeline: Timeline | undefined }) {
  const holes = timeline?.instants.filter((one) => one.is_hole) ?? [];
  const troubles = timeline?.troubles ?? [];
  return (
    <>
      {troubles.map((one) => (
        <Trouble key={one.message}>
          <strong>{one.message}</strong>
          {one.repair !== "" && <p>{one.repair}</p>}
        </Trouble>
      ))}
      {holes.map((one) => (
        <Trouble key={one.requested_time + one.action} tone="warn">
          {`${one.action} ${one.requested_time} is ${one.state.toLowerCase()}, and completed writes are behind it.`}
        </Trouble>
      ))}
      {troubles.length + holes.length === 0 && <Empty>Nothing is wrong with the timeline as the manager knows it.</Empty>}
      <p className="note">
        A full examination reads the table's files: <code>{`airflow lake doctor ${table.row.base_path}`}</code>
      </p>
    </>
  );
}

function PolicyTab({ tableId }: { tableId: string }) {
  const policy = useQuery({
    queryKey: ["policy", tableId],
    queryFn: ({ signal }) => get<Policy>(`tables/${encodeURIComponent(tableId)}/policy`, {}, signal),
  });
  if (policy.isError) {
    return <Trouble>{policy.error.message}</Trouble>;
  }
  if (policy.data === undefined) {
    return <Loading />;
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
              <td>{one.source}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
