// Numbers and times for people: in the language of Airflow's page, and in the time zone that is chosen there.
import { useSyncExternalStore } from "react";

import { nowMs } from "./api";

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1000 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest.toLocaleString(language(), { maximumSignificantDigits: rest < 100 ? 2 : 3 })} ${UNITS[unit]}`;
}

/** The average file, null where it is not known. */
export function fileSize(all: number | null, files: number | null): number | null {
  return all === null || files === null || files === 0 ? null : all / files;
}

export function count(value: number): string {
  return value.toLocaleString(language(), { maximumFractionDigits: 1 });
}

/** A share of one: `2.5%`. */
export function percent(value: number): string {
  return value.toLocaleString(language(), { style: "percent", maximumFractionDigits: 1 });
}

export function coreHours(value: number): string {
  return value.toLocaleString(language(), { maximumSignificantDigits: value < 100 ? 2 : 3 });
}

/** The clock for drawings, which need no second. */
export function nowLabel(): number {
  return nowMs();
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

const SPANS = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]] as const;

/** A duration in its two largest units, as the commands print it. */
export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10 && seconds !== Math.floor(seconds)) {
    return `${seconds.toFixed(1)} s`;
  }
  let rest = Math.round(seconds);
  const parts = SPANS.map(([unit, length]): [number, string] => {
    const found = Math.floor(rest / length);
    rest -= found * length;
    return [found, unit];
  });
  const first = parts.findIndex(([found]) => found > 0);
  const shown = first < 0 ? [] : parts.slice(first, first + 2).filter(([found]) => found > 0);
  return shown.map(([found, unit]) => `${found} ${unit}`).join(" ") || "0 s";
}

export function ago(ms: number | null, now: number): string {
  if (ms === null) {
    return "never";
  }
  const rest = now - ms;
  if (Math.abs(rest) < 2_000) {
    return "now";
  }
  return rest < 0 ? `in ${short(-rest)}` : `${short(rest)} ago`;
}

function short(ms: number): string {
  const seconds = ms / 1000;
  for (const [unit, length] of SPANS) {
    if (seconds >= 2 * length && length > 1) {
      return `${Math.floor(seconds / length)} ${unit}`;
    }
  }
  return `${Math.floor(seconds)} s`;
}

function language(): string | undefined {
  const chosen = document.documentElement.lang;
  try {
    return chosen === "" ? undefined : new Intl.Locale(chosen).toString();
  } catch {
    return undefined;
  }
}

const formats = new Map<string, Intl.DateTimeFormat>();

function format(zone: string, style: string, options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat {
  const key = `${language()} ${zone} ${style}`;
  let found = formats.get(key);
  if (found === undefined) {
    found = new Intl.DateTimeFormat(language(), { timeZone: zone, hourCycle: "h23", ...options });
    formats.set(key, found);
  }
  return found;
}

export function moment(ms: number | null, zone: string): string {
  if (ms === null) {
    return "–";
  }
  const options = { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } as const;
  return format(zone, "moment", { ...options, second: "2-digit", timeZoneName: "short" }).format(ms);
}

export function clock(ms: number, zone: string): string {
  return format(zone, "clock", { hour: "2-digit", minute: "2-digit" }).format(ms);
}

/** The day and the zone that ticks of hours belong to. */
export function dayAndZone(ms: number, zone: string): string {
  return format(zone, "dayzone", { month: "short", day: "numeric", timeZoneName: "short" }).format(ms);
}

export function tick(ms: number, zone: string, spanMs: number): string {
  if (spanMs <= 36 * 3_600_000) {
    return format(zone, "clock", { hour: "2-digit", minute: "2-digit" }).format(ms);
  }
  if (spanMs <= 4 * 86_400_000) {
    return format(zone, "dayclock", { weekday: "short", hour: "2-digit", minute: "2-digit" }).format(ms);
  }
  return format(zone, "day", { month: "short", day: "numeric" }).format(ms);
}

/** When a day (`2026-11-27`) begins in a zone; undefined for what is no day. */
export function dayBegins(day: string, zone: string): number | undefined {
  return momentOf(`${day}T00:00`, zone);
}

/** The moment of a wall clock's time (`2026-11-27T06:00`) in a zone; undefined for what is no time. */
export function momentOf(text: string, zone: string): number | undefined {
  const utc = Date.parse(`${text}:00Z`);
  if (Number.isNaN(utc)) {
    return undefined;
  }
  // Once more with the offset of the time that was found: clocks may change in between.
  const first = utc - offsetMs(utc, zone);
  return utc - offsetMs(first, zone);
}

/** The day after one (`2026-11-27`). */
export function dayAfter(day: string): string {
  const utc = Date.parse(`${day}T00:00:00Z`);
  return Number.isNaN(utc) ? "" : new Date(utc + 86_400_000).toISOString().slice(0, 10);
}

function offsetMs(ms: number, zone: string): number {
  const parts = new Intl.DateTimeFormat("en-GB", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric",
  }).formatToParts(ms);
  const of = (name: string) => Number(parts.find((one) => one.type === name)?.value);
  return Date.UTC(of("year"), of("month") - 1, of("day"), of("hour"), of("minute"), of("second")) - Math.floor(ms / 1000) * 1000;
}

// --- Airflow's time zone, and a clock that all ages share

const ZONE_KEY = "timezone";

function readZone(): string {
  const system = Intl.DateTimeFormat().resolvedOptions().timeZone;
  try {
    const text = localStorage.getItem(ZONE_KEY);
    const zone = text === null ? system : String(JSON.parse(text));
    new Intl.DateTimeFormat(undefined, { timeZone: zone });
    return zone;
  } catch {
    return system;
  }
}

function onZone(changed: () => void): () => void {
  // Airflow announces a choice of its own page as `local-storage`; other tabs announce theirs as `storage`.
  for (const kind of ["storage", "local-storage"]) {
    window.addEventListener(kind, changed);
  }
  return () => {
    for (const kind of ["storage", "local-storage"]) {
      window.removeEventListener(kind, changed);
    }
  };
}

export function useZone(): string {
  return useSyncExternalStore(onZone, readZone);
}

const TICK_MS = 1_000;
const listeners = new Set<() => void>();
let timer: ReturnType<typeof setInterval> | undefined;
let current = 0;

function onTick(changed: () => void): () => void {
  listeners.add(changed);
  timer ??= setInterval(() => {
    current = nowMs();
    for (const listener of listeners) {
      listener();
    }
  }, TICK_MS);
  return () => {
    listeners.delete(changed);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

export function useNow(): number {
  return useSyncExternalStore(onTick, () => (current ||= nowMs()));
}
