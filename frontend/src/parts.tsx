import { useEffect, useLayoutEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import { Link } from "react-router-dom";

export function useWidth<T extends HTMLElement>(): [RefObject<T | null>, number] {
  const ref = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (element === null) {
      return;
    }
    setWidth(element.clientWidth);
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

/** A search's text while it is typed. It goes into the address after a pause, and follows an address that others change. */
export function useTyped(text: string, choose: (text: string) => void): [string, (typed: string) => void] {
  const [typed, setTyped] = useState(text);
  // What was chosen and is not drawn yet.
  const asked = useRef<string[]>([]);
  useEffect(() => {
    const at = asked.current.indexOf(text);
    asked.current = at < 0 ? [] : asked.current.slice(at + 1);
    if (at < 0) {
      setTyped(text);
    }
  }, [text]);
  useEffect(() => {
    if (typed === (asked.current.at(-1) ?? text)) {
      return;
    }
    const timer = setTimeout(() => {
      asked.current.push(typed);
      choose(typed);
    }, 250);
    return () => clearTimeout(timer);
  });
  return [typed, setTyped];
}

/** Name the browser's tab after the page, as long as it is open. */
export function useTitle(name: string): void {
  useEffect(() => {
    const before = document.title;
    document.title = name === "" ? "Lake" : `${name} · Lake`;
    return () => {
      document.title = before;
    };
  }, [name]);
}

export function Panel({ name, aside, children }: { name: string; aside?: ReactNode; children: ReactNode }) {
  return (
    <section className="panel" aria-label={name}>
      <div className="panel-head">
        <h2>{name}</h2>
        {aside}
      </div>
      {children}
    </section>
  );
}

export function Alert({ children, tone = "bad" }: { children: ReactNode; tone?: "bad" | "warn" }) {
  return (
    <div className={`alert ${tone}`} role={tone === "bad" ? "alert" : "status"}>
      {children}
    </div>
  );
}

export function Empty({ children }: { children: ReactNode }) {
  return <p className="empty">{children}</p>;
}

export const SERVICE_DAG = "lake_table_service";

export function RunLink({ runId, dagId = SERVICE_DAG, children }: { runId: string; dagId?: string; children?: ReactNode }) {
  if (runId === "") {
    return null;
  }
  return (
    <Link to={runPath(runId, dagId)} title={runId}>
      {children ?? "run"}
    </Link>
  );
}

export function runPath(runId: string, dagId = SERVICE_DAG): string {
  return `/dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(runId)}`;
}

export function Loading() {
  return (
    <div className="loading" role="status">
      <span className="visually-hidden">Loading</span>
      <i />
      <i />
      <i />
    </div>
  );
}
