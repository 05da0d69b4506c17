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

export function duration(ms: number): string {
  const seconds = Math.max(0, ms) / 1000;
  if (seconds < 10) {
    return `${seconds.toFixed(1)} s`;
  }
  if (seconds < 120) {
    return `${Math.round(seconds)} s`;
  }
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) {
    return `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  if (hours < 48) {
    return minutes % 60 === 0 ? `${hours} h` : `${hours} h ${minutes % 60} min`;
  }
  return `${Math.round(hours / 24)} days`;
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
  for (const [unit, length] of [["d", 86_400], ["h", 3_600], ["min", 60]] as const) {
    if (seconds >= 2 * length) {
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

export function tick(ms: number, zone: string, spanMs: number): string {
  if (spanMs <= 36 * 3_600_000) {
    return format(zone, "clock", { hour: "2-digit", minute: "2-digit" }).format(ms);
  }
  if (spanMs <= 4 * 86_400_000) {
    return format(zone, "dayclock", { weekday: "short", hour: "2-digit", minute: "2-digit" }).format(ms);
  }
  return format(zone, "day", { month: "short", day: "numeric" }).format(ms);
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
