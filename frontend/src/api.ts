// The wire types of `/lake/api`, as docs/reference/http.md describes them.
export type State = "stuck" | "unreadable" | "failing" | "blocked" | "misconfigured" | "waiting" | "running" | "new" | "healthy";

export interface Meter {
  found: number;
  threshold: number;
  unit: string;
}

export interface Service {
  service: string;
  is_active: boolean;
  paused: string;
  state: State;
  verdict: "due" | "not_due" | "blocked";
  reason: string;
  run: string;
  run_reason: string;
  run_id: string;
  since_ms: number | null;
  meters: Meter[];
  evidence: Record<string, string>;
}

export interface Problem {
  state: State;
  source: string;
  subject: string;
  cause: string;
  remedy: string;
  /** An address, or a file of the documentation. */
  help: string;
  since_ms: number;
  snoozed_until_ms: number | null;
}

export interface Mark {
  kind: "paused" | "observed" | "held" | "snoozed";
  service: string;
  why: string;
  since_ms: number;
  ends_ms: number | null;
}

export interface Hour {
  hour_ms: number;
  service: string;
  state: string;
  runs: number;
  run_s: number;
  job_s: number;
  files_in: number;
  bytes_out: number;
}

export interface Day {
  until_ms: number;
  runs: number;
  failed_tries: number;
  core_s: number;
  rewritten_bytes: number;
  waiting: number;
  log_bytes: number;
}

export interface Overview {
  tables: number;
  states: { state: State; tables: number; needs_attention: boolean }[];
  marked: { mark: Mark["kind"]; tables: number }[];
  databases: { database: string; tables: number }[];
  owners: { owner: string; tables: number }[];
  backlog_bytes: number;
  oldest_dirty_ms: number | null;
  oldest_due_ms: number | null;
  holes: number;
  hours: Hour[];
  days: Day[];
  weeks: Day[];
  problems: string[];
}

export interface Benefit {
  log_bytes: number;
  files: number;
  instants: number;
  freed_bytes: number;
}

export interface Waiting {
  rank: number;
  table_id: string;
  table: string;
  database: string;
  service: string;
  urgency: string;
  since_ms: number;
  expected_ms: number | null;
  ahead: number;
  short_of: string;
  why: string;
  due_because: string;
  seconds: number | null;
  seconds_low: number | null;
  seconds_high: number | null;
  bytes: number | null;
  bytes_low: number | null;
  bytes_high: number | null;
  benefit: Benefit | null;
  basis: string;
}

export interface Budget {
  name: string;
  slots: number | null;
  core_hours_per_day: number | null;
  bytes_per_day: number | null;
  spent_core_hours: number;
  spent_bytes: number;
  waiting: number;
  waiting_core_hours: number;
  waiting_bytes: number;
  arrived_core_hours: number;
  arrived_bytes: number;
  pressure: "ok" | "slow" | "stop";
  needed_slots: number | null;
  needed_core_hours_per_day: number | null;
  needed_bytes_per_day: number | null;
  text: string;
}

export interface Backlog {
  waiting: Waiting[];
  observed: Waiting[];
  budgets: Budget[];
  problems: string[];
  most: number;
  is_limited: boolean;
}

export interface BacklogMoment {
  time_ms: number;
  log_bytes: number;
  waiting: number;
  core_hours: number;
}

export interface BacklogHistory {
  rows: BacklogMoment[];
  is_limited: boolean;
}

export interface Row {
  table_id: string;
  name: string;
  database: string;
  owner: string;
  base_path: string;
  state: State;
  since_ms: number | null;
  headline: string;
  problems: Problem[];
  marks: Mark[];
  log_bytes: number;
  base_bytes: number;
  files: number;
  file_bytes: number;
  last_commit_ms: number | null;
  last_notice_ms: number | null;
  evaluated_ms: number | null;
  next_evaluation_ms: number | null;
  services: Service[];
  last_run: { service: string; outcome: string; ended_ms: number; run_id: string } | null;
  rewritten: number[];
}

export interface Tables {
  rows: Row[];
  total: number;
  next: string;
}

export interface Run {
  service: string;
  state: string;
  owner: string;
  reason: string;
  run_id: string;
  plans: string[];
  since_ms: number | null;
  deadline_ms: number | null;
  tries: number;
}

export interface Sink {
  sink: string;
  state: string;
  hold: string;
  hold_ms: number | null;
  renewed_ms: number;
  problem: string;
}

export interface Hold {
  reader: string;
  reason: string;
  hold_ms: number | null;
  created_ms: number;
  ends_ms: number;
  until_ms: number;
  is_firm: boolean;
}

export interface Table {
  row: Row;
  services: Service[];
  runs: Run[];
  sinks: Sink[];
  holds: Hold[];
  notices: number;
  last_notice_source: string;
  registered_ms: number;
  holes: number;
  observed: string;
  is_paused: boolean;
  paused_services: string[];
  writers: Requirement[];
  writers_checked_ms: number | null;
}

export interface Requirement {
  requirement: string;
  state: string;
  evidence: string;
  endangers: string;
  settings: string[];
  blocks: string[];
}

export interface Finding {
  kind: string;
  instant: string;
  message: string;
  holds_up: string;
  blocks: string[];
  repair: string;
  does: string;
  refusal: string;
  help: string;
  call: { service: string; mode: string; instants: string[] } | null;
}

export interface Activity {
  instant: string;
  action: string;
  role: string;
  state: string;
  heartbeat_age_s: number | null;
  file_groups: string;
  clashes: string[];
  unread: string[];
}

export interface Lag {
  sink: string;
  lag_commits: number;
  lag_s: number;
  held_bytes: number;
  snapshot_rows: number | null;
  snapshot_total: number | null;
}

export interface Examination {
  problems: string[];
  findings: Finding[];
  active: Activity[];
  lags: Lag[];
}

export interface User {
  name: string;
  may_run: boolean;
  may_clear: boolean;
  may_index: boolean;
  may_pause: boolean;
  may_forget: boolean;
  variable: string;
}

export interface Instant {
  requested_time: string;
  requested_ms: number;
  completed_ms: number | null;
  action: string;
  lane: string;
  state: "REQUESTED" | "INFLIGHT" | "COMPLETED";
  operation: string;
  written_bytes: number;
  base_files: number;
  log_files: number;
  replaced_file_groups: number;
  is_hole: boolean;
}

export interface Size {
  time_ms: number;
  base_files: number;
  base_bytes: number;
  log_files: number;
  log_bytes: number;
  lane: string;
}

export interface Timeline {
  problem: string;
  table_type: string;
  table_version: string;
  time_zone: string;
  indexes: string[];
  instants: Instant[];
  is_cut: boolean;
  sizes: Size[];
  problems: { message: string; repair: string }[];
}

export interface BillLine {
  name: string;
  base_path: string;
  runs: number;
  failed_tries: number;
  core_s: number;
  expected_core_s: number;
  rewritten_bytes: number;
  expected_bytes: number;
  files_before: number;
  files_after: number;
  files_saved: number;
}

export interface Bill {
  by: string;
  since_ms: number;
  is_cut: boolean;
  lines: BillLine[];
}

export interface Situation {
  service: string;
  situation: string;
  what: string;
  from_ms: number;
  until_ms: number | null;
  due_ms: number | null;
  reason: string;
}

export interface History {
  days: number;
  lines: Situation[];
}

/** What an action on several tables did, or would do, to one of them. */
export interface BulkLine {
  table_id: string;
  table: string;
  base_path: string;
  verdict: "done" | "nothing" | "refused";
  reason: string;
  run_id: string;
}

export interface Bulk {
  lines: BulkLine[];
  problem: string;
  text: string;
}

export interface Policy {
  settings: { name: string; value: string; source: string; place: string }[];
}

export interface Phase {
  kind: "waiting" | "try" | "pause" | "closing";
  began_ms: number;
  ended_ms: number | null;
  try_number: number;
  state: string;
}

export interface Operation {
  run_id: string;
  dag_id: string;
  table_id: string;
  table_name: string;
  database: string;
  service: string;
  state: string;
  by: string;
  reason: string;
  error: string;
  created_ms: number;
  started_ms: number | null;
  ended_ms: number | null;
  tries: number;
  phases: Phase[];
  outcome: string;
  job_s: number;
  files_in: number | null;
  bytes_in: number | null;
  files_out: number | null;
  bytes_out: number | null;
  caused_by: string;
  due_ms: number | null;
  expected_s: number | null;
  expected_low_s: number | null;
  expected_high_s: number | null;
  expected_bytes: number | null;
  benefit: number | null;
}

export interface Operations {
  rows: Operation[];
  next: string;
}

export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

let skewMs = 0;

/** The server's clock: ages are computed against it, so that a wrong clock of this machine does no harm. */
export function nowMs(): number {
  return Date.now() + skewMs;
}

export type Params = Record<string, string | string[] | number | undefined>;

export function address(path: string, params: Params = {}): string {
  const url = new URL(`lake/api/${path}`, document.baseURI);
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "") {
        url.searchParams.append(name, String(one));
      }
    }
  }
  return url.href;
}

/** Ask for a resource. The browser keeps the last answer with its ETag, and shows it again when nothing changed. */
export async function get<T>(path: string, params: Params = {}, signal?: AbortSignal): Promise<T> {
  const answer = await fetch(address(path, params), { credentials: "same-origin", cache: "no-cache", signal });
  const date = Date.parse(answer.headers.get("date") ?? "");
  if (!Number.isNaN(date)) {
    // An answer that lay unread while this machine slept has an old time: the next one must correct it.
    const difference = date - Date.now();
    skewMs = Math.abs(difference) > 5_000 ? difference : 0;
  }
  if (answer.ok) {
    return (await answer.json()) as T;
  }
  if (answer.status === 401 || answer.status === 403) {
    throw new HttpError(answer.status, "You may not read the DAG lake_table_service, or your session has ended: log in to Airflow again.");
  }
  throw new HttpError(answer.status, await detailOf(answer));
}

/** Send to one of our own routes. */
export async function send<T>(path: string, body: unknown): Promise<T> {
  return exchange<T>("POST", address(path), body);
}

/** Send to Airflow's own API with the session of its page; an error has Airflow's message. */
export async function airflow<T>(method: string, path: string, body?: unknown): Promise<T> {
  return exchange<T>(method, new URL(`api/v2/${path}`, document.baseURI).href, body);
}

async function exchange<T>(method: string, url: string, body: unknown): Promise<T> {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(url, { method, headers, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body) });
  if (!answer.ok) {
    throw new HttpError(answer.status, `Refused with ${answer.status}: ${await detailOf(answer)}`);
  }
  return (answer.status === 204 ? undefined : await answer.json()) as T;
}

async function detailOf(answer: Response): Promise<string> {
  try {
    const { detail } = (await answer.json()) as { detail?: unknown };
    if (Array.isArray(detail)) {
      return detail.map((one) => String((one as { msg?: unknown }).msg ?? JSON.stringify(one))).join("; ");
    }
    return typeof detail === "string" ? detail : detail === undefined ? answer.statusText : JSON.stringify(detail);
  } catch {
    return answer.statusText; // not JSON: a proxy's page
  }
}
