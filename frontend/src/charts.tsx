// Charts in SVG: a few shapes, in the colours of the theme.
import { useState } from "react";

import type { BacklogMoment, Hour, Size } from "./api";
import { bytes, coreHours, count, moment, nowLabel, plural, tick, useZone } from "./format";
import { hue, SERVICES, title } from "./names";
import { Empty, useWidth } from "./parts";

const HOUR_MS = 3_600_000;

export function HoursChart({ hours }: { hours: Hour[] }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const zone = useZone();
  const [over, setOver] = useState<number | null>(null);
  const end = Math.floor(nowLabel() / HOUR_MS) * HOUR_MS;
  const slots = Array.from({ length: 24 }, (_, number) => end - (23 - number) * HOUR_MS);
  const height = 132;
  const [left, bottom, top] = [34, 20, 6];
  const runsOf = (slot: number, isFailed: boolean) =>
    hours.filter((one) => one.hour_ms === slot && (one.state === "failed") === isFailed).reduce((sum, one) => sum + one.runs, 0);
  const most = niceTop(Math.max(1, ...slots.map((slot) => runsOf(slot, false))));
  // Failures hang below the axis, as high as three pixels at least: a sliver in a stack is not seen.
  const mostFailed = Math.max(0, ...slots.map((slot) => runsOf(slot, true)));
  const step = (width - left) / 24;
  const y = (value: number) => top + (height - top - bottom) * (1 - (value + mostFailed) / (most + mostFailed));
  const services = SERVICES.filter((service) => hours.some((one) => one.service === service));
  const failed = hours.some((one) => one.state === "failed");
  const chosen = over === null ? undefined : slots[over];
  return (
    <div className="chart" ref={ref}>
      {width > 0 && (
        <svg width={width} height={height} role="img" aria-label={`Runs of services by hour, ${plural(hours.reduce((s, o) => s + o.runs, 0), "run")} in 24 hours`}>
          {[0, most / 2, most].map((value) => (
            <g key={value}>
              <line x1={left} x2={width} y1={y(value)} y2={y(value)} className="grid" />
              {Number.isInteger(value) && (
                <text x={left - 6} y={y(value) + 4} textAnchor="end">
                  {count(value)}
                </text>
              )}
            </g>
          ))}
          {slots.map((slot, number) => {
            const x = left + number * step;
            let base = 0;
            return (
              <g key={slot} onMouseEnter={() => setOver(number)} onMouseLeave={() => setOver(null)}>
                <rect x={x} y={top} width={step} height={height - top - bottom} className={over === number ? "slot on" : "slot"} />
                {services.flatMap((service) =>
                  ["success", "running", "queued"].map((state) => {
                    const runs = hours
                      .filter((one) => one.hour_ms === slot && one.service === service && one.state === state)
                      .reduce((sum, one) => sum + one.runs, 0);
                    if (runs === 0) {
                      return null;
                    }
                    base += runs;
                    return (
                      <rect
                        key={service + state}
                        x={x + Math.max(1, step * 0.12)}
                        width={Math.max(2, step * 0.76)}
                        y={y(base)}
                        height={Math.max(1, y(base - runs) - y(base) - 0.5)}
                        fill={hue(service)}
                        opacity={state === "queued" ? 0.5 : 1}
                        rx={1.5}
                      />
                    );
                  }),
                )}
                {runsOf(slot, true) > 0 && (
                  <rect
                    className="failed"
                    x={x + Math.max(1, step * 0.12)}
                    width={Math.max(2, step * 0.76)}
                    y={y(0) + 1}
                    height={Math.max(3, y(-runsOf(slot, true)) - y(0) - 1)}
                    fill="var(--st-failing)"
                    rx={1.5}
                  />
                )}
                {number % (width < 560 ? 6 : 3) === 0 && (
                  <text x={x + step / 2} y={height - 4} textAnchor="middle">
                    {tick(slot, zone, 24 * HOUR_MS)}
                  </text>
                )}
              </g>
            );
          })}
        </svg>
      )}
      <ul className="legend">
        {services.map((service) => (
          <li key={service}>
            <i style={{ background: hue(service) }} />
            {title(service)}
            {chosen !== undefined && (
              <b>{count(hours.filter((one) => one.hour_ms === chosen && one.service === service && one.state !== "failed").reduce((sum, one) => sum + one.runs, 0))}</b>
            )}
          </li>
        ))}
        {failed && (
          <li>
            <i style={{ background: "var(--st-failing)" }} />
            failed, below the line
            {chosen !== undefined && <b>{count(runsOf(chosen, true))}</b>}
          </li>
        )}
        {services.length === 0 && <li>No service ran in the last 24 hours.</li>}
      </ul>
    </div>
  );
}

// --- The backlog of all tables over a day or a week

const PERIOD_MS = 900_000;

interface BacklogProps {
  rows: BacklogMoment[];
  days: number;
  kind: "log_bytes" | "core_hours";
}

export function BacklogChart({ rows, days, kind }: BacklogProps) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const zone = useZone();
  const [over, setOver] = useState<BacklogMoment | null>(null);
  const last = rows.at(-1);
  const say = kind === "log_bytes" ? bytes : (value: number) => `${coreHours(value)} core hours`;
  const to = nowLabel();
  const from = to - days * 24 * HOUR_MS;
  const height = 132;
  const [left, bottom, top] = [62, 20, 6];
  const greatest = Math.max(...rows.map((one) => one[kind]), kind === "log_bytes" ? 1024 * 1024 : 0.1);
  const most = kind === "log_bytes" ? niceBytes(greatest) : niceTop(greatest);
  const x = (ms: number) => left + ((Math.max(ms, from) - from) / (to - from)) * (width - left);
  const y = (value: number) => top + (height - top - bottom) * (1 - value / most);
  const shown = over ?? last;
  const step = (days * 24 * HOUR_MS) / (width < 560 ? 4 : 8);
  return (
    <div className="chart" ref={ref}>
      {last === undefined && <Empty>No record yet: each run of lake_watch keeps one for a quarter of an hour.</Empty>}
      {last !== undefined && width > 0 && (
        <svg
          width={width}
          height={height}
          role="img"
          aria-label={`Backlog over ${days === 1 ? "24 hours" : "7 days"}: ${say(last[kind])} at the end, ${say(greatest)} at most`}
          onMouseLeave={() => setOver(null)}
          onMouseMove={(event) => {
            const at = from + ((event.nativeEvent.offsetX - left) / (width - left)) * (to - from);
            setOver(rows.filter((one) => one.time_ms <= at).at(-1) ?? null);
          }}
        >
          {[0, most / 2, most].map((value) => (
            <g key={value}>
              <line x1={left} x2={width} y1={y(value)} y2={y(value)} className="grid" />
              <text x={left - 6} y={y(value) + 4} textAnchor="end">
                {kind === "log_bytes" ? bytes(value) : coreHours(value)}
              </text>
            </g>
          ))}
          {Array.from({ length: Math.floor((to - from) / step) }, (_, number) => Math.ceil(from / HOUR_MS) * HOUR_MS + number * step).map((ms) => (
            <text key={ms} x={x(ms)} y={height - 4} textAnchor={ms - from < step / 4 ? "start" : "middle"}>
              {tick(ms, zone, days * 24 * HOUR_MS)}
            </text>
          ))}
          {rows.map((one, number) => {
            // Without a sweep there is no record, and the chart has a gap.
            const next = Math.min(rows[number + 1]?.time_ms ?? to, one.time_ms + 2 * PERIOD_MS, to);
            return next <= from ? null : (
              <rect
                key={one.time_ms}
                className="moment"
                x={x(one.time_ms)}
                width={Math.max(1, x(next) - x(one.time_ms))}
                y={y(one[kind])}
                height={Math.max(0, height - bottom - y(one[kind]))}
                fill={kind === "log_bytes" ? "var(--logs)" : "var(--s-clustering)"}
                opacity={over === one ? 1 : 0.8}
              />
            );
          })}
        </svg>
      )}
      {shown !== undefined && (
        <p className="note">
          {`${moment(shown.time_ms, zone)}: ${bytes(shown.log_bytes)} in log files, ${plural(shown.waiting, "service waits", "services wait")} for a budget with ${coreHours(shown.core_hours)} core hours`}
        </p>
      )}
    </div>
  );
}

function niceBytes(value: number): number {
  const unit = 1024 ** Math.floor(Math.log(value) / Math.log(1024));
  return niceTop(value / unit) * unit;
}

export function niceTop(value: number): number {
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 4, 5, 10].find((step) => step * power >= value) ?? 10) * power;
}

// --- Bytes and files over the same time as the timeline

interface SizeChartProps {
  sizes: Size[];
  from: number;
  to: number;
  left: number;
  width: number;
  kind: "bytes" | "files";
}

export function SizeChart({ sizes, from, to, left, width, kind }: SizeChartProps) {
  const zone = useZone();
  const [over, setOver] = useState<Size | null>(null);
  const height = 96;
  const [top, bottom] = [8, 6];
  const x = (ms: number) => left + ((ms - from) / (to - from)) * (width - left);
  const before = sizes.filter((one) => one.time_ms < from).at(-1);
  const inside = sizes.filter((one) => one.time_ms >= from && one.time_ms <= to);
  const shown = before === undefined ? inside : [{ ...before, time_ms: from, lane: "" }, ...inside];
  const base = (one: Size) => (kind === "bytes" ? one.base_bytes : one.base_files);
  const logs = (one: Size) => (kind === "bytes" ? one.log_bytes : one.log_files);
  const say = kind === "bytes" ? bytes : count;
  const most = Math.max(1, ...shown.map((one) => base(one) + logs(one)));
  const y = (value: number) => top + (height - top - bottom) * (1 - value / most);
  const end = Math.min(to, nowLabel());
  const area = (low: (one: Size) => number, high: (one: Size) => number) => {
    const up: string[] = [];
    const down: string[] = [];
    shown.forEach((one, number) => {
      const next = shown[number + 1]?.time_ms ?? Math.max(end, one.time_ms);
      up.push(`${x(one.time_ms)},${y(high(one))}`, `${x(next)},${y(high(one))}`);
      down.unshift(`${x(next)},${y(low(one))}`, `${x(one.time_ms)},${y(low(one))}`);
    });
    return [...up, ...down].join(" ");
  };
  const services = inside.filter((one) => one.lane !== "commits");
  const last = over ?? shown.at(-1);
  const name = kind === "bytes" ? "Bytes" : "Files";
  return (
    <div className="size-chart">
      <svg
        width={width}
        height={height}
        role="img"
        aria-label={last === undefined ? `${name}: no completed write in sight` : `${name} at the end: ${say(base(last))} in base files, ${say(logs(last))} in log files`}
        onMouseLeave={() => setOver(null)}
        onMouseMove={(event) => {
          const at = from + ((event.nativeEvent.offsetX - left) / (width - left)) * (to - from);
          setOver(shown.filter((one) => one.time_ms <= at).at(-1) ?? null);
        }}
      >
        <text x={left - 10} y={top + 10} textAnchor="end" className="lane-name">
          {name}
        </text>
        <text x={left - 10} y={top + 26} textAnchor="end">
          {say(most)}
        </text>
        <line x1={left} x2={width} y1={height - bottom} y2={height - bottom} className="grid" />
        {shown.length > 0 && (
          <>
            <polygon points={area(() => 0, base)} fill="var(--base)" />
            <polygon points={area(base, (one) => base(one) + logs(one))} fill="var(--logs)" />
          </>
        )}
        {services.map((one) => (
          <line key={`${one.time_ms}${one.lane}`} x1={x(one.time_ms)} x2={x(one.time_ms)} y1={top} y2={height - bottom} stroke={hue(one.lane)} strokeDasharray="2 2" />
        ))}
        {over !== null && <line x1={x(over.time_ms)} x2={x(over.time_ms)} y1={0} y2={height} className="cursor" />}
      </svg>
      {last !== undefined && (
        <p className="note size-note">
          <i style={{ background: "var(--base)" }} />
          {`${say(base(last))} base`}
          <i style={{ background: "var(--logs)" }} />
          {`${say(logs(last))} log`}
          {over !== null && ` · ${moment(over.time_ms, zone)}`}
        </p>
      )}
    </div>
  );
}
