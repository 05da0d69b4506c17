import { useQuery } from "@tanstack/react-query";
import { Link } from "react-router-dom";

import { PauseAction, RunActions, SnoozeAction, TableActions } from "../actions";
import { get, HttpError, type Operations, type Service, type Table, type Timeline } from "../api";
import { Missing } from "../away";
import { ago, duration, moment, plural, useNow, useZone } from "../format";
import { Bar, hue, Marks, meterText, openMeters, Problems, share, StateChip, title } from "../names";
import { Empty, Panel, RunLink, Alert, useTitle } from "../parts";
import { TimelineChart } from "../timeline";
import { Tabs } from "./tabs";

const EVERY_MS = 5_000;

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
  useTitle(table.data?.row.name ?? "");
  if (table.error instanceof HttpError && table.error.status === 404) {
    return (
      <>
        <Crumbs name="not found" />
        <Alert>{`There is no table ${tableId} that you may see. If it was forgotten, its next commit registers it again.`}</Alert>
      </>
    );
  }
  if (table.data === undefined) {
    return <Missing of={table} />;
  }
  const found = table.data;
  return (
    <>
      <Crumbs name={found.row.name} />
      <Head table={found} type={timeline.data} />
      <Meters table={found} />
      <Panel name="Timeline" aside={timeline.data?.is_cut === true ? <p className="note">the newest 3,000 instants</p> : undefined}>
        <Missing of={timeline} />
        {timeline.data !== undefined && timeline.data.problem !== "" && <Alert>{timeline.data.problem}</Alert>}
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
        <Marks marks={row.marks} />
        <TableActions table={table} />
      </div>
      {row.problems.every((one) => one.snoozed_until_ms !== null) && <p className="headline">{row.headline}</p>}
      {table.observed !== "" && <p className="note">{`The manager starts nothing on this table: ${table.observed}.`}</p>}
      <p className="facts">
        <code title="Base path">{row.base_path}</code>
        {row.owner !== "" && <span>owner {row.owner}</span>}
        {type !== undefined && type.table_type !== "" && (
          <span>{`${type.table_type === "MERGE_ON_READ" ? "merge on read" : "copy on write"}, version ${type.table_version}`}</span>
        )}
        <span title={moment(row.last_commit_ms, zone)}>{`last commit ${ago(row.last_commit_ms, now)}`}</span>
        <span title={moment(row.last_notice_ms, zone)}>{`last notice ${ago(row.last_notice_ms, now)}, ${plural(table.notices, "notice")} in all`}</span>
        <span title={moment(row.evaluated_ms, zone)}>{`evaluated ${ago(row.evaluated_ms, now)}`}</span>
        {row.next_evaluation_ms !== null && <span title={moment(row.next_evaluation_ms, zone)}>{`next ${ago(row.next_evaluation_ms, now)} at the latest`}</span>}
      </p>
      {row.problems.length > 0 && (
        <Alert tone={row.problems.some((one) => one.snoozed_until_ms === null) ? "bad" : "warn"}>
          <Problems problems={row.problems} action={(one) => <SnoozeAction table={table} problem={one} />} />
        </Alert>
      )}
    </header>
  );
}

function Meters({ table }: { table: Table }) {
  const now = useNow();
  const { services } = table;
  const active = services.filter((one) => one.is_active || one.state !== "healthy" || one.paused !== "");
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
              <StateChip state={one.paused === "" ? one.state : "waiting"} word={word(one)} />
            </h3>
            {openMeters(one).map((meter) => (
              <div className="meter" key={meter.unit}>
                <Bar share={share(meter)} colour={hue(one.service)} label={`${title(one.service)}: ${meterText(meter)}`} />
                <span>{meterText(meter)}</span>
              </div>
            ))}
            {(openMeters(one).length === 0 || one.state !== "healthy" || one.paused !== "") && <p>{reasonOf(one)}</p>}
            {one.run_id !== "" && (
              <p className="card-foot">
                <RunLink runId={one.run_id}>open the run</RunLink>
                {one.since_ms !== null && <span>{`for ${duration(now - one.since_ms)}`}</span>}
              </p>
            )}
            <span className="actions">
              <RunActions table={table} service={one.service} />
              <PauseAction table={table} service={one} />
            </span>
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
                  {one.reason}{" "}
                  <span className="actions">
                    <RunActions table={table} service={one.service} />
                  </span>
                </dd>
              </div>
            ))}
          </dl>
        </details>
      )}
    </section>
  );
}

function reasonOf(one: Service): string {
  // Until the next evaluation its reason does not know of the pause.
  if (one.paused !== "" && !one.reason.startsWith("paused by")) {
    return `paused by ${one.paused}; ${one.reason}`;
  }
  return one.run_reason !== "" && one.state !== "blocked" ? one.run_reason : one.reason;
}

function word(one: Service): string {
  if (one.paused !== "") {
    return "paused";
  }
  if (one.run === "already_ran") {
    return "nothing to do";
  }
  if (one.state === "healthy") {
    return "not due";
  }
  return one.run === "abandoned" ? "given up" : one.state;
}
