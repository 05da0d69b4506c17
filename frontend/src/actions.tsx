// Actions. Each is a request to Airflow's own API with the user's session: Airflow checks the right and logs it.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState, type ReactNode } from "react";

import { airflow, get, HttpError, nowMs, send, type Problem, type Service, type Table, type User } from "./api";
import { momentOf, useZone } from "./format";
import { title } from "./names";
import { RunLink, SERVICE_DAG, Alert } from "./parts";

const INDEX_DAG = "lake_reindex";
const WITHOUT_MANAGER = ["savepoint", "orphans"];

export function useUser(): User | undefined {
  return useQuery({ queryKey: ["me"], queryFn: ({ signal }) => get<User>("me", {}, signal), staleTime: 300_000 }).data;
}

interface Started {
  dagId: string;
  runId: string;
}

interface Offer {
  /** What the button says. */
  label: string;
  /** What the dialog is called. */
  name: string;
  /** What will happen, in sentences. */
  children: ReactNode;
  act: () => Promise<Started | undefined>;
  done?: string;
  tone?: "danger";
}

/** A button that says in a dialog what will happen, and does it when that is confirmed. */
export function Action(offer: Offer) {
  // As it was when it was opened: what the dialog has done must not turn it into its opposite.
  const [opened, setOpened] = useState<Offer>();
  return (
    <>
      <button type="button" className="button small" aria-haspopup="dialog" onClick={() => setOpened(offer)}>
        {offer.label}
      </button>
      {opened !== undefined && <Confirmation {...opened} close={() => setOpened(undefined)} />}
    </>
  );
}

function Confirmation({ label, name, children, act, done, tone, close }: Offer & { close: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const client = useQueryClient();
  const [state, setState] = useState<"asks" | "sends" | "done">("asks");
  const [started, setStarted] = useState<Started>();
  const [problem, setProblem] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const confirm = async () => {
    setState("sends");
    setProblem("");
    try {
      setStarted(await act());
      setState("done");
      await client.invalidateQueries();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setState("asks");
    }
  };
  return (
    <dialog ref={dialog} className="confirm" aria-label={name} onClose={close}>
      <h2>{name}</h2>
      {state === "done" ? (
        <p role="status">
          {done ?? "Airflow has queued the run."} {started !== undefined && <RunLink runId={started.runId} dagId={started.dagId}>Open the run</RunLink>}
        </p>
      ) : (
        <div className="says">{children}</div>
      )}
      {problem !== "" && <Alert>{problem}</Alert>}
      <p className="confirm-foot">
        <button type="button" className="button" onClick={() => dialog.current?.close()}>
          {state === "done" ? "Close" : "Cancel"}
        </button>
        {state !== "done" && (
          <button type="button" className={`button main ${tone ?? ""}`} disabled={state === "sends"} onClick={() => void confirm()}>
            {state === "sends" ? "Sending…" : label}
          </button>
        )}
      </p>
    </dialog>
  );
}

// --- Runs of a service

interface Call {
  service: string;
  mode?: string;
  instants?: string[];
  reason?: string;
}

/** Maximum length of a table's name in a run's id, characters: Airflow takes 250 in all. */
const MAX_NAME = 100;

/** Start a run by hand. Its id shows table and service first, as those of the manager's runs do. */
async function start(dagId: string, table: Table, service: string, conf: Record<string, unknown>): Promise<Started> {
  const second = new Date(nowMs()).toISOString().slice(0, 19).replace(/[-:]/g, "");
  const name = table.row.name.replace(/[^A-Za-z0-9_~+-]/g, "_").slice(0, MAX_NAME) || "table";
  const runId = `${name}.${service}.by_hand_${second}`;
  const body = { logical_date: null, dag_run_id: runId, conf: { base_path: table.row.base_path, ...conf } };
  const run = await airflow<{ dag_run_id: string }>("POST", `dags/${dagId}/dagRuns`, body);
  return { dagId, runId: run.dag_run_id };
}

function startService(table: Table, user: User, call: Call, isDry: boolean): Promise<Started> {
  const reason = call.reason ?? `${isDry ? "dry run" : "started"} by ${user.name} on the Lake page`;
  return start(SERVICE_DAG, table, call.service, {
    table_name: table.row.name,
    service: call.service,
    mode: call.mode ?? "schedule_and_execute",
    instants: call.instants ?? [],
    dry_run: isDry,
    reason,
  });
}

export function RunActions({ table, service }: { table: Table; service: string }) {
  const user = useUser();
  if (user?.may_run !== true || WITHOUT_MANAGER.includes(service)) {
    return null;
  }
  // An index build by hand names its indexes: see the tab of indexes.
  if (service === "indexing") {
    return null;
  }
  const what = title(service).toLowerCase();
  return (
    <>
      <Action label="Dry run" name={`Dry run: ${what} of ${table.row.name}`} act={() => startService(table, user, { service }, true)}>
        <p>
          Airflow starts a run of <code>{SERVICE_DAG}</code> that changes nothing: its log shows which plans are pending, and what would be
          submitted with which settings.
        </p>
      </Action>
      <Action label="Run now" name={`Run now: ${what} of ${table.row.name}`} act={() => startService(table, user, { service }, false)}>
        <p>
          Airflow starts a run of <code>{SERVICE_DAG}</code>: {what} of <code>{table.row.base_path}</code>, now, whether or not it is due. It executes
          pending plans first, and makes a new one only when none is pending.
        </p>
        <p>The settings are the table's in the tables file. While another executor has this service of the table, the run waits and is retried.</p>
      </Action>
    </>
  );
}

export function RepairAction({ table, call, does }: { table: Table; call: Call; does: string }) {
  const user = useUser();
  if (user?.may_run !== true) {
    return null;
  }
  return (
    <Action label="Repair" name={`Repair ${table.row.name}`} act={() => startService(table, user, call, false)}>
      <p>
        Airflow starts a run of <code>{SERVICE_DAG}</code> that would {does}. The run examines the timeline again before it changes anything.
      </p>
    </Action>
  );
}

export function RetryAction({ dagId, runId, service }: { dagId: string; runId: string; service: string }) {
  const user = useUser();
  if (user?.may_clear !== true || dagId !== SERVICE_DAG) {
    return null;
  }
  const clear = async () => {
    const path = `dags/${encodeURIComponent(dagId)}/dagRuns/${encodeURIComponent(runId)}/clear`;
    await airflow("POST", path, { dry_run: false, only_failed: true });
    return { dagId, runId };
  };
  return (
    <Action label="Retry" name={`Retry this ${title(service).toLowerCase()}`} act={clear} done="Airflow has cleared the run and tries it again.">
      <p>
        Airflow clears the failed task of run <code>{runId}</code>, and tries it again with the run's own settings. The next try resumes what the last one
        left on the timeline.
      </p>
    </Action>
  );
}

// --- Indexes

/** Indexes that their metadata partition names completely. */
const PLAIN = ["files", "column_stats", "partition_stats", "bloom_filters", "record_index"];

export function IndexAction({ table, index, isComplete }: { table: Table; index: string; isComplete: boolean }) {
  const user = useUser();
  if (user?.may_index !== true || (isComplete && !PLAIN.includes(index))) {
    return null;
  }
  const verb = isComplete ? "Rebuild" : "Build";
  const reason = `started by ${user.name} on the Lake page`;
  const build = () => start(INDEX_DAG, table, "indexing", { indexes: [index], drop_first: isComplete, reason });
  return (
    <Action label={verb} name={`${verb} ${index} of ${table.row.name}`} act={build} tone={isComplete ? "danger" : undefined}>
      <p>
        Airflow starts a run of <code>{INDEX_DAG}</code>, which builds <code>{index}</code> while writers continue.
        {isComplete ? " It drops the index first: until the build has completed, queries read without it." : ""}
      </p>
    </Action>
  );
}

// --- Pause and resume: a change of the Variable over the tables file

/** Pause or resume one service of a table; what the tables file itself pauses is resumed there. */
export function PauseAction({ table, service }: { table: Table; service: Service }) {
  const user = useUser();
  const asked = usePause();
  const isResume = table.paused_services.includes(service.service);
  const canPause = service.paused === "" && table.observed === "";
  if (user?.may_pause !== true || !(isResume || canPause)) {
    return null;
  }
  const what = title(service.service).toLowerCase();
  const verb = isResume ? "Resume" : "Pause";
  return (
    <Action
      label={verb}
      name={`${verb} ${what} of ${table.row.name}`}
      act={() => setPaused(table, user.variable, { paused: !isResume, service: service.service, ...asked.read() })}
      done={`Variable ${user.variable} is written. It takes effect within 15 s.`}
    >
      {isResume ? (
        <p>
          {`The manager starts ${what} of ${table.row.name} again when it is due. `}The page takes <code>{`${service.service}.paused`}</code> out of Airflow's Variable{" "}
          <code>{user.variable}</code>.
        </p>
      ) : (
        <>
          <p>
            {`No new ${what} of ${table.row.name} starts until a person resumes it, or the pause ends; pending plans wait, too. An active run, other services and manual runs go on.`}
          </p>
          {asked.inputs}
          <p className="note">
            Your name and the time are kept as <code>{`${service.service}.paused`}</code> in Airflow's Variable <code>{user.variable}</code>.
          </p>
        </>
      )}
    </Action>
  );
}

/** Why, and until when: the inputs of a pause, and what was typed. */
export function usePause() {
  const why = useRef<HTMLInputElement>(null);
  const until = useRef<HTMLInputElement>(null);
  const zone = useZone();
  const read = () => {
    const text = until.current?.value ?? "";
    return { why: why.current?.value ?? "", until_ms: text === "" ? undefined : momentOf(text, zone) };
  };
  const inputs = (
    <>
      <label className="why">
        <span>Why</span>
        <input ref={why} maxLength={200} />
      </label>
      <label className="why">
        <span>Until</span>
        <input ref={until} type="datetime-local" aria-label={`Until, in ${zone}; empty: until a person resumes it`} />
      </label>
      <p className="note">{`Until is a time in ${zone}; empty: until a person resumes it.`}</p>
    </>
  );
  return { read, inputs };
}

// --- Snooze: silence a problem until a time

export const HOUR_MS = 3_600_000;
export const SNOOZES: [string, number][] = [
  ["1 hour", HOUR_MS],
  ["12 hours", 12 * HOUR_MS],
  ["1 day", 24 * HOUR_MS],
  ["3 days", 72 * HOUR_MS],
  ["1 week", 168 * HOUR_MS],
  ["30 days", 720 * HOUR_MS],
];

export function SnoozeAction({ table, problem }: { table: Table; problem: Problem }) {
  const user = useUser();
  const why = useRef<HTMLInputElement>(null);
  const span = useRef<HTMLSelectElement>(null);
  if (user?.may_pause !== true) {
    return null;
  }
  const isEnd = problem.snoozed_until_ms !== null;
  const act = async (): Promise<undefined> => {
    const { state, source, subject } = problem;
    const until = isEnd ? {} : { until_ms: nowMs() + Number(span.current?.value), why: why.current?.value ?? "" };
    await send(`tables/${encodeURIComponent(table.row.table_id)}/snooze`, { state, source, subject, ...until });
  };
  return (
    <Action
      label={isEnd ? "End the snooze" : "Snooze"}
      name={`${isEnd ? "End the snooze" : "Snooze"}: ${problem.subject || problem.source} of ${table.row.name}`}
      act={act}
      done={isEnd ? "The snooze has ended." : "The problem is snoozed."}
    >
      {isEnd ? (
        <p>The problem counts for the table's state again, and notifies people.</p>
      ) : (
        <>
          <p>
            Until then the problem stays on this page, marked with your name, but counts for no state and notifies no one. Another problem, or a worse state of
            this one, is not silenced.
          </p>
          <label className="why">
            <span>For</span>
            <select ref={span} defaultValue={24 * HOUR_MS}>
              {SNOOZES.map(([name, ms]) => (
                <option key={name} value={ms}>
                  {name}
                </option>
              ))}
            </select>
          </label>
          <label className="why">
            <span>Why</span>
            <input ref={why} maxLength={200} />
          </label>
        </>
      )}
    </Action>
  );
}

// --- The table as a whole

export function TableActions({ table }: { table: Table }) {
  const user = useUser();
  const asked = usePause();
  if (user === undefined) {
    return null;
  }
  const isResume = table.is_paused;
  const canPause = user.may_pause && (isResume || table.observed === "");
  return (
    <span className="actions">
      {canPause && (
        <Action
          label={isResume ? "Resume" : "Pause"}
          name={`${isResume ? "Resume" : "Pause"} ${table.row.name}`}
          act={() => setPaused(table, user.variable, { paused: !isResume, ...asked.read() })}
          done={`Variable ${user.variable} is written. It takes effect within 15 s.`}
        >
          {isResume ? (
            <p>
              The manager starts what is due again. The page takes <code>paused</code> of this table out of Airflow's Variable <code>{user.variable}</code>.
            </p>
          ) : (
            <>
              <p>
                {`No service of ${table.row.name} starts until a person resumes it, or the pause ends; pending plans wait, too. Active runs, manual runs and replication go on.`}
              </p>
              {asked.inputs}
              <p className="note">
                Your name and the time are kept as <code>paused</code> in Airflow's Variable <code>{user.variable}</code>.
              </p>
            </>
          )}
        </Action>
      )}
      {user.may_forget && (
        <Action label="Forget" name={`Forget ${table.row.name}`} act={() => forget(table)} done="The registry has forgotten the table." tone="danger">
          <p>
            The table leaves the registry, with its {table.sinks.length === 0 ? "history of runs" : "sinks, and what they hold back from cleaning"}. No file is
            touched. The next notice, the tables file or discovery registers a table again that is still there.
          </p>
        </Action>
      )}
    </span>
  );
}

async function forget(table: Table): Promise<undefined> {
  await send(`tables/${encodeURIComponent(table.row.table_id)}/forget`, {});
}

interface Change {
  paused: boolean;
  service?: string;
  why?: string;
  until_ms?: number;
}

const ROUNDS = 5;
/** Longer than another page takes from its last reading of the Variable to its write. */
const SETTLE_MS = 700;

/** Whether two texts of the Variable say the same: Airflow writes JSON that it answers with in its own way. */
function isSame(one: string | undefined, other: string | undefined): boolean {
  return one === other || (one !== undefined && other !== undefined && compact(one) === compact(other));
}

function compact(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text; // YAML, which Airflow leaves as it is
  }
}

export async function readVariable(path: string): Promise<string | undefined> {
  try {
    return (await airflow<{ value: string }>("GET", path)).value;
  } catch (error) {
    if (error instanceof HttpError && error.status === 404) {
      return undefined;
    }
    throw error;
  }
}

async function setPaused(table: Table, variable: string, change: Change): Promise<undefined> {
  const edit = `tables/${encodeURIComponent(table.row.table_id)}/pause`;
  await editVariable(variable, async (known, round) => {
    try {
      return (await send<{ text: string }>(edit, { text: known, ...change })).text;
    } catch (error) {
      if (round > 0 && !change.paused && error instanceof HttpError && error.status === 422) {
        return known; // nothing pauses it any more
      }
      throw error;
    }
  });
}

/** The Variable is one text of all tables, and Airflow writes it whole: what others write at the same moment must stay. */
export async function editVariable(variable: string, edit: (known: string, round: number) => Promise<string>): Promise<void> {
  const path = `variables/${encodeURIComponent(variable)}`;
  for (let round = 0; round < ROUNDS; round += 1) {
    const known = await readVariable(path);
    const text = await edit(known ?? "", round);
    if (text === (known ?? "") || isSame(text, known)) {
      return; // it is there
    }
    if (!isSame(await readVariable(path), known)) {
      continue; // another page was faster: begin with what it wrote
    }
    if (known === undefined) {
      await airflow("POST", "variables", { key: variable, value: text });
    } else {
      await airflow("PATCH", `${path}?update_mask=value`, { key: variable, value: text });
    }
    // A page that had read the same text before this write would write over it: read it again.
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    if (isSame(await readVariable(path), text)) {
      return;
    }
  }
  throw new Error(`Variable ${variable} is written by others all the time: check whether your change is there, and try again`);
}
