// The timeline of a table: a lane for commits and one for each service, bars from requested to completed.
import { useEffect, useMemo, useRef, useState, type KeyboardEvent, type PointerEvent } from "react";
import { useNavigate } from "react-router-dom";

import type { Instant, Operation, Service, Table, Timeline } from "./api";
import { SizeChart } from "./charts";
import { dayAndZone, bytes, count, duration, fileSize, moment, plural, tick, useNow, useZone } from "./format";
import { hue, SERVICES, title } from "./names";
import { RunLink, runPath, useWidth } from "./parts";

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const ZOOMS: [string, number][] = [
  ["1 h", HOUR],
  ["6 h", 6 * HOUR],
  ["24 h", DAY],
  ["7 d", 7 * DAY],
  ["30 d", 30 * DAY],
];
const LANE_PX = 34;
const AXIS_PX = 26;
const WITHOUT_INSTANTS = new Set(["archive", "ttl", "metacompaction"]);

interface Props {
  timeline: Timeline;
  table: Table;
  operations: Operation[];
}

export function findRun(instant: Instant, operations: Operation[], now: number): Operation | undefined {
  if (instant.lane === "commits") {
    return undefined;
  }
  const of = operations.filter((one) => one.service === instant.lane);
  const end = instant.completed_ms ?? now;
  return (
    of.find((one) => one.run_id.includes(instant.requested_time)) ??
    of.find((one) => one.created_ms <= end + 2_000 && (one.ended_ms ?? now) >= instant.requested_ms - 2_000)
  );
}

function firstSpan(instants: Instant[], now: number): number {
  const enough = Math.min(instants.length, 40);
  for (const [, span] of ZOOMS) {
    if (instants.filter((one) => one.requested_ms >= now - span).length >= enough) {
      return span;
    }
  }
  return Math.max(30 * DAY, 1.05 * (now - (instants[0]?.requested_ms ?? now)));
}

export function TimelineChart({ timeline, table, operations }: Props) {
  const navigate = useNavigate();
  const zone = useZone();
  const now = useNow();
  const [ref, width] = useWidth<HTMLDivElement>();
  const { instants } = timeline;
  const [span, setSpan] = useState(() => firstSpan(instants, now));
  // The right end, or null while it follows the clock.
  const [end, setEnd] = useState<number | null>(null);
  const [chosen, setChosen] = useState<string | null>(null);
  const [hovered, setHovered] = useState<string | null>(null);
  const drag = useRef<{ x: number; end: number; moved: boolean } | null>(null);

  const left = width < 620 ? 96 : 158;
  const to = end ?? now + span * 0.02;
  const from = to - span;
  const x = (ms: number) => left + ((ms - from) / span) * (width - left);
  const lanes = useMemo(() => lanesOf(timeline, table, operations), [timeline, table, operations]);
  const height = AXIS_PX + lanes.length * LANE_PX + 4;
  const inside = instants.filter((one) => one.requested_ms <= to && (one.completed_ms ?? now) >= from);
  const focus = instants.find((one) => one.requested_time + one.action === (hovered ?? chosen));

  const zoom = (next: number, at = (from + to) / 2) => {
    const bounded = Math.min(Math.max(next, 5 * 60_000), 400 * DAY);
    if (end !== null) {
      setEnd(at + (to - at) * (bounded / span));
    }
    setSpan(bounded);
  };
  const pan = (by: number) => {
    const next = to + by;
    setEnd(next >= now ? null : next);
  };

  const choose = (one: Instant | undefined) => {
    if (one === undefined) {
      return;
    }
    setChosen(one.requested_time + one.action);
    if (one.requested_ms < from || one.requested_ms > to) {
      setEnd(one.requested_ms + span / 2);
    }
  };
  const onKey = (event: KeyboardEvent) => {
    const current = instants.findIndex((one) => one.requested_time + one.action === chosen);
    const lane = instants[current]?.lane;
    const actions: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? pan(-span / 4) : choose(instants[current < 0 ? instants.length - 1 : Math.max(0, current - 1)])),
      ArrowRight: () => (event.shiftKey ? pan(span / 4) : choose(instants[current < 0 ? instants.length - 1 : Math.min(instants.length - 1, current + 1)])),
      ArrowUp: () => choose(instants.slice(0, Math.max(0, current)).filter((one) => one.lane !== "commits" || lane !== "commits").findLast((one) => one.lane !== lane)),
      ArrowDown: () => choose(instants.slice(current + 1).find((one) => one.lane !== lane)),
      Home: () => choose(instants[0]),
      End: () => choose(instants.at(-1)),
      "+": () => zoom(span / 2),
      "=": () => zoom(span / 2),
      "-": () => zoom(span * 2),
      Enter: () => {
        const run = focus === undefined ? undefined : findRun(focus, operations, now);
        if (run !== undefined) {
          void navigate(runPath(run.run_id, run.dag_id));
        }
      },
      Escape: () => setChosen(null),
    };
    const action = actions[event.key];
    if (action !== undefined) {
      event.preventDefault();
      action();
    }
  };

  // React listens to wheels passively, which cannot keep the page from zooming.
  const area = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = area.current;
    const onWheel = (event: WheelEvent) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        const box = element?.getBoundingClientRect();
        const share = box === undefined ? 0.5 : (event.clientX - box.left - left) / (width - left);
        zoom(span * (event.deltaY > 0 ? 1.25 : 0.8), from + share * span);
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        pan((event.deltaX / (width - left)) * span);
      }
    };
    element?.addEventListener("wheel", onWheel, { passive: false });
    return () => element?.removeEventListener("wheel", onWheel);
  });

  const onDown = (event: PointerEvent) => {
    drag.current = { x: event.clientX, end: to, moved: false };
  };
  const onMove = (event: PointerEvent) => {
    const begun = drag.current;
    if (begun === null || event.buttons === 0) {
      return;
    }
    const by = event.clientX - begun.x;
    if (begun.moved || Math.abs(by) > 4) {
      begun.moved = true;
      const next = begun.end - (by / (width - left)) * span;
      setEnd(next >= now ? null : next);
    }
  };

  const firstMs = instants[0]?.requested_ms ?? now;
  return (
    <>
      <div className="zooms" role="group" aria-label="Zoom">
        {ZOOMS.map(([name, value]) => (
          <button type="button" key={name} aria-pressed={Math.abs(span - value) < 1} onClick={() => zoom(value)}>
            {name}
          </button>
        ))}
        <button
          type="button"
          onClick={() => {
            setEnd(null);
            setSpan(Math.max(1.05 * (now - firstMs), 5 * 60_000));
          }}
        >
          all
        </button>
        <span className="gap" />
        <button type="button" aria-label="Earlier" onClick={() => pan(-span / 2)}>
          ‹
        </button>
        <button type="button" aria-label="Later" disabled={end === null} onClick={() => pan(span / 2)}>
          ›
        </button>
        <button type="button" aria-pressed={end === null} onClick={() => setEnd(null)}>
          now
        </button>
      </div>
      <div ref={ref} className="timeline">
        <div
          ref={area}
          tabIndex={0}
          role="application"
          aria-roledescription="timeline"
          aria-label={`Timeline of ${table.row.name}, ${plural(inside.length, "instant")} in sight. Arrow keys move from instant to instant, plus and minus zoom, Enter opens the run.`}
          onKeyDown={onKey}
          onPointerDown={onDown}
          onPointerMove={onMove}
          onPointerLeave={() => setHovered(null)}
        >
          {width > 0 && (
            <svg width={width} height={height} aria-hidden="true">
              <defs>
                {["commits", ...SERVICES].map((lane) => (
                  <Hatch key={lane} id={`hatch-${lane}`} colour={hue(lane)} />
                ))}
                <Hatch id="hatch-bad" colour="var(--st-failing)" />
                <Hatch id="hatch-wait" colour="var(--st-waiting)" />
                <marker id="arrow-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
                  <path d="M0 0 L8 4 L0 8 z" fill="var(--st-failing)" />
                </marker>
                <clipPath id="lane-clip">
                  <rect x={left} y={0} width={Math.max(0, width - left)} height={height} />
                </clipPath>
              </defs>
              <Axis from={from} to={to} x={x} width={width} left={left} height={height} zone={zone} span={span} />
              {lanes.map((lane, number) => (
                <g key={lane} transform={`translate(0 ${AXIS_PX + number * LANE_PX})`}>
                  {number % 2 === 0 && <rect x={0} width={width} height={LANE_PX} className="stripe" rx={4} />}
                  <text x={left - 10} y={LANE_PX / 2 + 4} textAnchor="end" className="lane-name">
                    {width < 620 ? title(lane).split(" ")[0] : title(lane)}
                  </text>
                  <g clipPath="url(#lane-clip)">
                    <Band lane={lane} table={table} x={x} now={now} width={width} />
                    <Runs lane={lane} operations={operations} x={x} now={now} from={from} to={to} onOpen={(run) => void navigate(runPath(run.run_id, run.dag_id))} />
                    {inside
                      .filter((one) => one.lane === lane)
                      .sort((one, two) => Number(two.is_hole) - Number(one.is_hole))
                      .map((one) => (
                        <Mark
                          key={one.requested_time + one.action}
                          one={one}
                          x={x}
                          now={now}
                          isOn={focus === one}
                          onEnter={() => setHovered(one.requested_time + one.action)}
                          onClick={() => {
                            if (drag.current?.moved !== true) {
                              setChosen(one.requested_time + one.action);
                              area.current?.focus();
                            }
                          }}
                        />
                      ))}
                  </g>
                </g>
              ))}
              <g clipPath="url(#lane-clip)">
                {table.services.map((one) => (
                  <Blocker key={one.service} service={one} instants={instants} lanes={lanes} x={x} />
                ))}
                {table.sinks
                  .filter((sink) => sink.hold_ms !== null)
                  .map((sink) => (
                    <g key={sink.sink}>
                      <line x1={x(sink.hold_ms ?? 0)} x2={x(sink.hold_ms ?? 0)} y1={AXIS_PX - 4} y2={height} className="safepoint" />
                      <text x={x(sink.hold_ms ?? 0) + 4} y={AXIS_PX + 8} className="safepoint-name">
                        safepoint of {sink.sink}
                      </text>
                    </g>
                  ))}
                <line x1={x(now)} x2={x(now)} y1={AXIS_PX - 6} y2={height} className="now" />
              </g>
            </svg>
          )}
          {focus !== undefined && width > 0 && (
            <Tip one={focus} operations={operations} now={now} zone={zone} x={Math.max(left, Math.min(x(focus.requested_ms), width))} width={width} y={AXIS_PX + (lanes.indexOf(focus.lane) + 1) * LANE_PX} />
          )}
        </div>
        <p className="visually-hidden" aria-live="polite">
          {focus === undefined ? "" : describe(focus, zone)}
        </p>
        {width > 0 && timeline.sizes.length > 0 && (
          <>
            <SizeChart sizes={timeline.sizes} from={from} to={to} left={left} width={width} kind="bytes" />
            <SizeChart sizes={timeline.sizes} from={from} to={to} left={left} width={width} kind="files" />
          </>
        )}
      </div>
      <Legend instants={inside} lanes={lanes} />
    </>
  );
}

function lanesOf(timeline: Timeline, table: Table, operations: Operation[]): string[] {
  const seen = new Set(timeline.instants.map((one) => one.lane));
  for (const one of operations) {
    if (WITHOUT_INSTANTS.has(one.service)) {
      seen.add(one.service);
    }
  }
  for (const one of table.services) {
    if (one.is_active && (one.meters.length > 0 || one.verdict !== "not_due") && one.service !== "rollback") {
      seen.add(one.service);
    }
  }
  return ["commits", ...SERVICES.filter((one) => seen.has(one))];
}

function Hatch({ id, colour }: { id: string; colour: string }) {
  return (
    <pattern id={id} width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
      <rect width="6" height="6" fill={colour} opacity="0.18" />
      <rect width="2.5" height="6" fill={colour} opacity="0.9" />
    </pattern>
  );
}

interface AxisProps {
  from: number;
  to: number;
  x: (ms: number) => number;
  width: number;
  left: number;
  height: number;
  zone: string;
  span: number;
}

const STEPS = [1, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 10_080, 20_160, 43_200].map((minutes) => minutes * 60_000);

function Axis({ from, to, x, width, left, height, zone, span }: AxisProps) {
  const most = Math.max(2, Math.floor((width - left) / 96));
  const step = STEPS.find((one) => span / one <= most) ?? 90 * DAY;
  // Ticks at full hours and days of the zone: its offset is not always a multiple of the step.
  const offset = zoneOffset(from, zone);
  const first = Math.ceil((from + offset) / step) * step - offset;
  const ticks = [];
  for (let at = first; at <= to; at += step) {
    ticks.push(at);
  }
  return (
    <g className="axis">
      <text x={left - 10} y={AXIS_PX - 12} textAnchor="end">
        {dayAndZone(from, zone)}
      </text>
      {ticks.map((at) => (
        <g key={at}>
          <line x1={x(at)} x2={x(at)} y1={AXIS_PX - 6} y2={height} className="grid" />
          {x(at) < width - 22 && (
            <text x={x(at)} y={AXIS_PX - 12} textAnchor={x(at) - left < 20 ? "start" : "middle"}>
              {tick(at, zone, span)}
            </text>
          )}
        </g>
      ))}
    </g>
  );
}

function zoneOffset(at: number, zone: string): number {
  const parts = new Intl.DateTimeFormat("en-US", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric",
  }).formatToParts(at);
  const of = (kind: string) => Number(parts.find((part) => part.type === kind)?.value ?? 0);
  return Date.UTC(of("year"), of("month") - 1, of("day"), of("hour"), of("minute"), of("second")) - Math.floor(at / 1000) * 1000;
}

interface MarkProps {
  one: Instant;
  x: (ms: number) => number;
  now: number;
  isOn: boolean;
  onEnter: () => void;
  onClick: () => void;
}

function Mark({ one, x, now, isOn, onEnter, onClick }: MarkProps) {
  const begin = x(one.requested_ms);
  const end = x(one.completed_ms ?? now);
  const width = Math.max(4, end - begin);
  if (one.lane === "savepoint") {
    return (
      <path
        d={`M${begin} 8 l7 9 l-7 9 l-7 -9 z`}
        className={isOn ? "mark on" : "mark"}
        fill={hue("savepoint")}
        onPointerEnter={onEnter}
        onClick={onClick}
      />
    );
  }
  const isPending = one.state !== "COMPLETED";
  // It spans all writes after it: they are drawn over it.
  const [y, height] = one.is_hole ? [3, 26] : [7, 16];
  return (
    <g onPointerEnter={onEnter} onClick={onClick} className={isOn ? "mark on" : "mark"}>
      {/* A wider target than the bar: a commit may be two pixels wide. */}
      <rect x={begin - 3} width={width + 6} y={2} height={LANE_PX - 8} fill="transparent" />
      <rect
        x={begin}
        width={width}
        y={y}
        height={height}
        rx={Math.min(3.5, width / 2)}
        fillOpacity={one.is_hole ? 0.45 : 1}
        fill={isPending ? `url(#hatch-${one.lane})` : hue(one.lane)}
        stroke={one.is_hole ? "var(--st-failing)" : isPending ? hue(one.lane) : undefined}
        strokeWidth={one.is_hole ? 2 : 1}
      />
      {one.is_hole && (
        <text x={begin + 5} y={19.5} className="hole">
          not finished
        </text>
      )}
    </g>
  );
}

interface BandProps {
  lane: string;
  table: Table;
  x: (ms: number) => number;
  now: number;
  width: number;
}

function Band({ lane, table, x, now, width }: BandProps) {
  const service = table.services.find((one) => one.service === lane);
  if (service === undefined || service.since_ms === null || !["blocked", "waiting", "failing"].includes(service.state)) {
    return null;
  }
  const begin = x(service.since_ms);
  const isWaiting = service.state === "waiting";
  const words = service.state === "blocked" ? "blocked" : isWaiting ? "due" : "failing";
  return (
    <g>
      <title>{service.state === "blocked" ? service.reason : service.run_reason || service.reason}</title>
      <rect x={begin} width={Math.max(6, x(now) - begin)} y={4} height={22} rx={4} fill={`url(#hatch-${isWaiting ? "wait" : "bad"})`} opacity={0.55} />
      <text x={Math.min(Math.max(begin, 170) + 6, width - 60)} y={19} className={`band st-${service.state}`}>
        {words}
      </text>
    </g>
  );
}

/** The instant that a blocked or waiting service names in its reason; the oldest one, which holds up the others. */
export function findBlocker(service: Service, instants: Instant[]): Instant | undefined {
  if (service.state !== "blocked" && service.state !== "waiting") {
    return undefined;
  }
  const said = `${service.reason} ${service.run_reason}`;
  return instants.find((one) => one.state !== "COMPLETED" && said.includes(one.requested_time));
}

interface BlockerProps {
  service: Service;
  instants: Instant[];
  lanes: string[];
  x: (ms: number) => number;
}

/** An arrow from the lane of a service to what is in its way. */
function Blocker({ service, instants, lanes, x }: BlockerProps) {
  const blocker = findBlocker(service, instants);
  const [from, to] = [lanes.indexOf(service.service), blocker === undefined ? -1 : lanes.indexOf(blocker.lane)];
  if (blocker === undefined || service.since_ms === null || from < 0 || to < 0 || from === to) {
    return null;
  }
  const down = to > from;
  const begin = Math.max(x(service.since_ms), x(blocker.requested_ms)) + 12;
  const [y1, y2] = [AXIS_PX + from * LANE_PX + (down ? 26 : 4), AXIS_PX + to * LANE_PX + (down ? 3 : 29)];
  return (
    <path d={`M${begin} ${y1} C ${begin} ${(y1 + y2) / 2}, ${begin - 8} ${(y1 + y2) / 2}, ${begin - 8} ${y2}`} className="blocker" markerEnd="url(#arrow-head)">
      <title>{`${title(service.service)} is ${service.state}: ${service.run_reason || service.reason}`}</title>
    </path>
  );
}

interface RunsProps {
  lane: string;
  operations: Operation[];
  x: (ms: number) => number;
  now: number;
  from: number;
  to: number;
  onOpen: (run: Operation) => void;
}

/** A thin line below the bars: from the start of the run in Airflow to its end. */
function Runs({ lane, operations, x, now, from, to, onOpen }: RunsProps) {
  return operations
    .filter((one) => one.service === lane && one.created_ms <= to && (one.ended_ms ?? now) >= from)
    .map((one) => {
      const begin = x(one.started_ms ?? one.created_ms);
      const isAlone = WITHOUT_INSTANTS.has(lane);
      const colour = one.state === "failed" ? "var(--st-failing)" : hue(lane);
      return (
        <rect
          key={one.run_id}
          x={begin}
          width={Math.max(4, x(one.ended_ms ?? now) - begin)}
          y={isAlone ? 7 : 26}
          height={isAlone ? 16 : 3}
          rx={1.5}
          fill={isAlone && one.ended_ms === null ? `url(#hatch-${lane})` : colour}
          opacity={isAlone ? 1 : 0.65}
          className="mark"
          onClick={() => onOpen(one)}
        >
          <title>{`Run ${one.state}, ${duration((one.ended_ms ?? now) - one.created_ms)}: ${one.reason}`}</title>
        </rect>
      );
    });
}

function describe(one: Instant, zone: string): string {
  const state = one.state === "COMPLETED" ? "completed" : one.state.toLowerCase();
  return `${title(one.lane)} ${one.action}, ${state}, requested ${moment(one.requested_ms, zone)}, ${plural(one.base_files + one.log_files, "file")}, ${bytes(one.written_bytes)}`;
}

interface TipProps {
  one: Instant;
  operations: Operation[];
  now: number;
  zone: string;
  x: number;
  y: number;
  width: number;
}

function Tip({ one, operations, now, zone, x, y, width }: TipProps) {
  const run = findRun(one, operations, now);
  const isDone = one.state === "COMPLETED";
  const files = [
    one.base_files > 0 ? plural(one.base_files, "base file") : "",
    one.log_files > 0 ? plural(one.log_files, "log file") : "",
  ].filter(Boolean);
  const size = 292;
  return (
    <div className="tip" style={{ left: Math.max(4, Math.min(x - 20, width - size - 4)), top: y, width: size }}>
      <p className="tip-head">
        <i style={{ background: hue(one.lane) }} />
        <strong>{one.lane === "commits" ? one.action : title(one.lane)}</strong>
        <span>{one.operation.toLowerCase().replaceAll("_", " ")}</span>
      </p>
      <dl>
        <dt>requested</dt>
        <dd>{moment(one.requested_ms, zone)}</dd>
        <dt>{isDone ? "took" : one.state.toLowerCase()}</dt>
        <dd>
          {isDone ? duration((one.completed_ms ?? one.requested_ms) - one.requested_ms) : `for ${duration(now - one.requested_ms)}`}
          {one.is_hole && <b className="bad"> not finished, while later writes are</b>}
        </dd>
        {files.length > 0 && (
          <>
            <dt>wrote</dt>
            <dd>{`${files.join(", ")} · ${bytes(one.written_bytes)}`}</dd>
          </>
        )}
        {one.replaced_file_groups > 0 && (
          <>
            <dt>replaced</dt>
            <dd>{plural(one.replaced_file_groups, "file group")}</dd>
          </>
        )}
        {run !== undefined && run.files_in !== null && run.files_out !== null && (
          <>
            <dt>files</dt>
            <dd>{`${count(run.files_in)} → ${count(run.files_out)}${sizes(run)}`}</dd>
          </>
        )}
        <dt>instant</dt>
        <dd className="mono">{one.requested_time}</dd>
        {run !== undefined && (
          <>
            <dt>run</dt>
            <dd>
              <RunLink runId={run.run_id} dagId={run.dag_id}>
                {`${run.state} · by ${run.by}`}
              </RunLink>
            </dd>
          </>
        )}
      </dl>
    </div>
  );
}

function sizes(run: Operation): string {
  const [before, after] = [fileSize(run.bytes_in, run.files_in), fileSize(run.bytes_out, run.files_out)];
  return before === null || after === null ? "" : `, of ${bytes(before)} → ${bytes(after)}`;
}

function Legend({ instants, lanes }: { instants: Instant[]; lanes: string[] }) {
  const written = instants.reduce((sum, one) => sum + one.written_bytes, 0);
  return (
    <ul className="legend">
      <li>
        <i className="solid" /> requested to completed
      </li>
      <li>
        <i className="hatched" /> pending
      </li>
      <li>
        <i className="thin" /> run in Airflow
      </li>
      {lanes.includes("savepoint") && <li>◆ savepoint</li>}
      <li className="right">{`${plural(instants.length, "instant")} in sight, ${bytes(written)} written, ${count(instants.filter((one) => one.state !== "COMPLETED").length)} pending`}</li>
    </ul>
  );
}
