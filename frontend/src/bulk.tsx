// One action on several tables of the list: a dry run says what it would do to each, then a person confirms it.
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { editVariable, HOUR_MS, readVariable, SNOOZES, usePause, useUser } from "./actions";
import { nowMs, send, type Bulk, type BulkLine } from "./api";
import { count, plural } from "./format";
import { SERVICES, title } from "./names";
import { Alert, RunLink } from "./parts";

const MAX_TABLES = 200;
/** Services whose runs by hand name more than a table. */
const NOT_IN_BULK = ["savepoint", "orphans", "indexing"];

export type Verb = "Run" | "Pause" | "Resume" | "Snooze";

/** What is sent to choose tables: their ids, or the list's filter. */
export type Choice = { table_ids: string[] } | { matching: Record<string, unknown> };

interface Chosen {
  choice: Choice;
  /** How many they are. */
  tables: number;
  /** How many match the list's filter. */
  matching: number;
  chooseMatching: () => void;
  clear: () => void;
}

/** The actions on the chosen tables; nothing while none is chosen. */
export function BulkBar({ choice, tables, matching, chooseMatching, clear }: Chosen) {
  const user = useUser();
  const [opened, setOpened] = useState<{ verb: Verb; choice: Choice; tables: number }>();
  const verbs: Verb[] = [...(user?.may_run === true ? (["Run"] as const) : []), ...(user?.may_pause === true ? (["Pause", "Resume", "Snooze"] as const) : [])];
  if (tables === 0 && opened === undefined) {
    return null;
  }
  return (
    <div className="bulk" role="group" aria-label="Chosen tables">
      <span role="status">{`${plural(tables, "table")} chosen`}</span>
      {tables < matching && (
        <button type="button" className="button small" onClick={chooseMatching}>{`Choose all ${count(matching)} that match`}</button>
      )}
      {tables > MAX_TABLES ? (
        <span className="note">{`At most ${MAX_TABLES} at a time: narrow the filter, or set it for all of them in the tables file.`}</span>
      ) : (
        verbs.map((verb) => (
          <button key={verb} type="button" className="button small" aria-haspopup="dialog" onClick={() => setOpened({ verb, choice, tables })}>
            {verb === "Run" ? "Run a service" : verb}
          </button>
        ))
      )}
      <button type="button" className="button small" onClick={clear}>
        Clear
      </button>
      {opened !== undefined && <BulkDialog {...opened} close={() => setOpened(undefined)} />}
    </div>
  );
}

const SAYS: Record<Verb, string> = {
  Run: "Airflow starts a run of the service for each table, now, whether or not it is due, outside budgets and windows. Tables that are observed, paused or blocked are refused.",
  Pause: "No new run of the chosen service starts on these tables until a person resumes it, or the pause ends. Active and manual runs go on.",
  Resume: "The manager starts what is due again. What the tables file itself pauses is resumed there.",
  Snooze: "The problems that these tables have now count for no state and notify no one until then. Others, or worse ones, are not silenced.",
};

const DOES: Record<Verb, [string, string]> = {
  Run: ["would start on", "Started on"],
  Pause: ["would pause", "Paused"],
  Resume: ["would resume", "Resumed"],
  Snooze: ["would silence problems of", "Silenced problems of"],
};

function BulkDialog({ verb, choice, tables, close }: { verb: Verb; choice: Choice; tables: number; close: () => void }) {
  const user = useUser();
  const client = useQueryClient();
  const dialog = useRef<HTMLDialogElement>(null);
  const why = useRef<HTMLInputElement>(null);
  const span = useRef<HTMLSelectElement>(null);
  const [service, setService] = useState(verb === "Run" ? "compaction" : "");
  const pause = usePause();
  const [step, setStep] = useState<"asks" | "checks" | "checked" | "sends" | "done">("asks");
  const [found, setFound] = useState<Bulk>();
  const [problem, setProblem] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const variable = user?.variable ?? "";
  const busy = step === "checks" || step === "sends";
  const name = `${verb === "Run" ? "Run a service" : verb}: ${plural(tables, "table")}`;

  const act = (which: Choice, isDry: boolean): Promise<Bulk> => {
    if (verb === "Run") {
      return send<Bulk>("bulk/run", { ...which, service, why: why.current?.value ?? "", dry_run: isDry });
    }
    if (verb === "Snooze") {
      const until_ms = nowMs() + Number(span.current?.value);
      return send<Bulk>("bulk/snooze", { ...which, until_ms, why: why.current?.value ?? "", dry_run: isDry });
    }
    const change = { ...which, paused: verb === "Pause", service: service === "" ? null : service, ...(verb === "Pause" ? pause.read() : {}) };
    return isDry ? readPauses(variable, change) : writePauses(variable, change);
  };
  const go = async (isDry: boolean) => {
    const before = step;
    setStep(isDry ? "checks" : "sends");
    setProblem("");
    try {
      // What was checked is what is done, also when the filter finds other tables by now.
      setFound(await act(isDry ? choice : { table_ids: found?.lines.filter((one) => one.verdict === "done").map((one) => one.table_id) ?? [] }, isDry));
      setStep(isDry ? "checked" : "done");
      if (!isDry) {
        await client.invalidateQueries();
      }
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setStep(before);
    }
  };
  const acts = found?.lines.filter((one) => one.verdict === "done").length ?? 0;
  const again = () => {
    setStep("asks");
    setFound(undefined);
  };
  return (
    <dialog ref={dialog} className="confirm bulk-dialog" aria-label={name} onClose={close}>
      <h2>{name}</h2>
      {step !== "done" && (
        <div className="says" onChange={again}>
          <p>{SAYS[verb]}</p>
          {verb !== "Snooze" && (
            <label className="why">
              <span>Service</span>
              <select value={service} onChange={(event) => setService(event.target.value)}>
                {verb !== "Run" && <option value="">all: the tables</option>}
                {SERVICES.filter((one) => verb !== "Run" || !NOT_IN_BULK.includes(one)).map((one) => (
                  <option key={one} value={one}>
                    {title(one)}
                  </option>
                ))}
              </select>
            </label>
          )}
          {verb === "Snooze" && (
            <label className="why">
              <span>For</span>
              <select ref={span} defaultValue={24 * HOUR_MS}>
                {SNOOZES.map(([words, ms]) => (
                  <option key={words} value={ms}>
                    {words}
                  </option>
                ))}
              </select>
            </label>
          )}
          {verb === "Pause" && pause.inputs}
          {(verb === "Run" || verb === "Snooze") && (
            <label className="why">
              <span>Why</span>
              <input ref={why} maxLength={200} />
            </label>
          )}
        </div>
      )}
      {found !== undefined && <Lines verb={verb} found={found} isDone={step === "done"} />}
      {problem !== "" && <Alert>{problem}</Alert>}
      <p className="confirm-foot">
        <button type="button" className="button" onClick={() => dialog.current?.close()}>
          {step === "done" ? "Close" : "Cancel"}
        </button>
        {(step === "asks" || step === "checks") && (
          <button type="button" className="button main" disabled={busy} onClick={() => void go(true)}>
            {busy ? "Checking…" : "Dry run"}
          </button>
        )}
        {(step === "checked" || step === "sends") && (
          <button type="button" className="button main" disabled={busy || acts === 0} onClick={() => void go(false)}>
            {busy ? "Sending…" : `${verb} ${plural(acts, "table")}`}
          </button>
        )}
      </p>
    </dialog>
  );
}

const ORDER = ["refused", "nothing", "done"];

function Lines({ verb, found, isDone }: { verb: Verb; found: Bulk; isDone: boolean }) {
  const of = (verdict: string) => found.lines.filter((one) => one.verdict === verdict).length;
  const [would, did] = DOES[verb];
  const lines = [...found.lines].sort((one, other) => ORDER.indexOf(one.verdict) - ORDER.indexOf(other.verdict));
  const does = isDone ? did : `It ${would}`;
  return (
    <>
      <p role="status">{`${does} ${plural(of("done"), "table")}; ${count(of("refused"))} refused, ${count(of("nothing"))} need nothing.`}</p>
      {found.problem !== "" && <Alert tone="warn">{found.problem}</Alert>}
      <ul className="bulk-lines" tabIndex={0} aria-label="Each table">
        {lines.map((one) => (
          <li key={one.table_id} className={one.verdict}>
            <b>{one.table}</b> {saysOf(one)} {isDone && one.run_id !== "" && <RunLink runId={one.run_id}>Open the run</RunLink>}
          </li>
        ))}
      </ul>
    </>
  );
}

function saysOf(one: BulkLine): string {
  const verdict = one.verdict === "refused" ? "refused: " : one.verdict === "nothing" ? "needs nothing: " : "";
  return `${verdict}${one.reason}`;
}

// --- Pauses are an edit of Airflow's Variable, which Airflow's own route writes

async function readPauses(variable: string, change: Record<string, unknown>): Promise<Bulk> {
  const text = (await readVariable(`variables/${encodeURIComponent(variable)}`)) ?? "";
  return send<Bulk>("bulk/pause", { text, ...change });
}

async function writePauses(variable: string, change: Record<string, unknown>): Promise<Bulk> {
  let first: Bulk | undefined;
  await editVariable(variable, async (text) => {
    const found = await send<Bulk>("bulk/pause", { text, ...change });
    first ??= found; // a later round finds its own work there
    return found.text;
  });
  return first ?? { lines: [], problem: "", text: "" };
}
