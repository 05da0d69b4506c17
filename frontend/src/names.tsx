// Words and colours of states and services.
import type { ReactNode } from "react";

import type { Mark, Meter, Problem, Service, State } from "./api";
import { ago, count, moment, percent, useNow, useZone } from "./format";

export const STATES: State[] = ["stuck", "unreadable", "failing", "blocked", "misconfigured", "waiting", "running", "new", "healthy"];

export const SERVICES = [
  "compaction", "logcompaction", "clustering", "clean", "archive", "rollback", "indexing", "metacompaction", "ttl",
  "savepoint", "orphans", "sync", "integrity",
];

const TITLES: Record<string, string> = {
  commits: "Commits",
  compaction: "Compaction",
  logcompaction: "Log compaction",
  clustering: "Clustering",
  clean: "Clean",
  archive: "Archive",
  rollback: "Rollback",
  indexing: "Index build",
  metacompaction: "Metadata compaction",
  ttl: "Expired data",
  savepoint: "Savepoints",
  orphans: "Orphan files",
  sync: "Catalog",
  integrity: "Integrity",
  evaluation: "Evaluation",
};

export function title(service: string): string {
  return TITLES[service] ?? service;
}

export function hue(lane: string): string {
  return `var(--s-${TITLES[lane] === undefined ? "commits" : lane})`;
}

/** Names that more than one of these has. */
export function findTwins(all: { name: string; base_path: string }[]): ReadonlySet<string> {
  const paths = new Map<string, string>();
  const twins = new Set<string>();
  for (const { name, base_path } of all) {
    if ((paths.get(name) ?? base_path) !== base_path) {
      twins.add(name);
    }
    paths.set(name, base_path);
  }
  return twins;
}

export function StateChip({ state, word }: { state: string; word?: string }) {
  return (
    <span className={`chip st-${state}`}>
      <span className="dot" aria-hidden="true" />
      {word ?? state}
    </span>
  );
}

/** Marks of a table, each with its age: a wish of long ago must not be forgotten. */
export function Marks({ marks }: { marks: Mark[] }) {
  const now = useNow();
  const zone = useZone();
  return marks.map((one) => (
    <span className="mark-chip" key={one.kind + one.service} title={one.why}>
      {`${one.service === "" ? "" : `${title(one.service)} `}${one.kind}, ${ago(one.since_ms, now)}`}
      {one.ends_ms !== null && `, until ${moment(one.ends_ms, zone)}`}
    </span>
  ));
}

/** Where the documentation explains it: a link where it is served, else the file's name. */
export function Help({ place }: { place: string }) {
  return (
    <small className="help">
      {"More: "}
      {/^https?:/.test(place) ? (
        <a href={place} target="_blank" rel="noreferrer">
          {place}
        </a>
      ) : (
        <code>{place}</code>
      )}
    </small>
  );
}

/** A text with its commands, which stand between backticks, as code. */
export function Said({ text }: { text: string }) {
  return text.split("`").map((part, number) => (number % 2 === 1 ? <code key={number}>{part}</code> : part));
}

/** What a person has to act on: cause, since when, and what to do, none of it cut. */
export function Problems({ problems, action }: { problems: Problem[]; action?: (one: Problem) => ReactNode }) {
  const now = useNow();
  const zone = useZone();
  return (
    <ul className="problems">
      {problems.map((one) => (
        <li key={one.source + one.subject + one.state}>
          <StateChip state={one.state} /> <Said text={one.cause} />. <small title={moment(one.since_ms, zone)}>{`Found ${ago(one.since_ms, now)}.`}</small>
          {one.remedy !== "" && <p className="remedy"><Said text={`What to do: ${one.remedy}.`} /></p>}
          <Help place={one.help} /> {action?.(one)}
          {one.snoozed_until_ms !== null && <small>{` Snoozed until ${moment(one.snoozed_until_ms, zone)}.`}</small>}
        </li>
      ))}
    </ul>
  );
}

const FIRST = ["failing", "blocked", "running", "waiting"];

/** What comes next: a service that fails, is blocked, at work or due; else the one whose rule is nearest. */
export function nearest(services: Service[]): { service: string; state: State; meter: Meter | undefined } | undefined {
  for (const state of FIRST) {
    const due = services.find((one) => one.state === state);
    if (due !== undefined) {
      return { service: due.service, state: due.state, meter: undefined };
    }
  }
  const waiting = services.filter((one) => one.is_active && one.paused === "").flatMap((one) => openMeters(one).map((meter) => ({ service: one.service, state: one.state, meter })));
  return waiting.sort((one, other) => share(other.meter) - share(one.meter))[0];
}

export function share(meter: Meter): number {
  return meter.found / meter.threshold;
}

/** Meters that say something: one that is full while its service is not due waits for what no rule counts. */
export function openMeters(service: Service): Meter[] {
  return service.state === "healthy" ? service.meters.filter((one) => share(one) < 1) : service.meters;
}

export function meterText(meter: Meter): string {
  if (meter.unit === "%") {
    return `log files ${percent(meter.found / 100)} of base files, rule ${percent(meter.threshold / 100)}`;
  }
  return `${count(meter.found)} of ${count(meter.threshold)} ${meter.unit}`;
}

export function Bar({ share, colour, label }: { share: number; colour: string; label: string }) {
  const percent = Math.round(100 * Math.min(share, 1));
  return (
    <span
      className={share >= 1 ? "bar full" : "bar"}
      role="meter"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={percent}
      aria-valuetext={label}
      title={label}
    >
      <span style={{ width: `${percent}%`, background: colour }} />
    </span>
  );
}
