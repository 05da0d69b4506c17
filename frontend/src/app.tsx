import { QueryClientProvider } from "@tanstack/react-query";
import { NavLink, useLocation } from "react-router-dom";

import { Away } from "./away";
import { client, ROOT } from "./client";
import { BacklogPage } from "./pages/backlog";
import { BillPage } from "./pages/bill";
import { LakePage } from "./pages/lake";
import { OperationsPage } from "./pages/operations";
import { TablePage } from "./pages/table";

function Page() {
  const { pathname } = useLocation();
  const rest = pathname.slice(pathname.indexOf(ROOT) + ROOT.length).split("/").filter(Boolean);
  if (rest[0] === "tables" && rest[1] !== undefined) {
    return <TablePage key={rest[1]} tableId={decodeURIComponent(rest[1])} />;
  }
  if (rest[0] === "backlog") {
    return <BacklogPage />;
  }
  if (rest[0] === "bill") {
    return <BillPage />;
  }
  return rest[0] === "operations" ? <OperationsPage /> : <LakePage />;
}

export function App() {
  const { pathname } = useLocation();
  const place = ["operations", "backlog", "bill"].find((name) => pathname.endsWith(`/${name}`));
  return (
    <QueryClientProvider client={client}>
      <div className="lake">
        <header className="lake-top">
          <nav aria-label="Lake">
            <NavLink to={ROOT} end aria-current={place === undefined ? "page" : undefined} className={place === undefined ? "on" : ""}>
              Tables
            </NavLink>
            <NavLink to={`${ROOT}/backlog`} className={place === "backlog" ? "on" : ""}>
              Backlog
            </NavLink>
            <NavLink to={`${ROOT}/operations`} className={place === "operations" ? "on" : ""}>
              Operations
            </NavLink>
            <NavLink to={`${ROOT}/bill`} className={place === "bill" ? "on" : ""}>
              Bill
            </NavLink>
          </nav>
        </header>
        <Away />
        <main>
          <Page />
        </main>
      </div>
    </QueryClientProvider>
  );
}
