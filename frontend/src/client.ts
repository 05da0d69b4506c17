// What all places in Airflow's page share: one memory of answers, and the address of the Lake.
import { QueryClient } from "@tanstack/react-query";

import { HttpError } from "./api";

export const client = new QueryClient({
  defaultOptions: {
    queries: {
      // An Airflow on this machine answers without a network, and what does not answer is said by a failed question.
      networkMode: "always",
      staleTime: 2_000,
      refetchIntervalInBackground: false,
      retry: (failures, error) => failures < 2 && !(error instanceof HttpError && error.status < 500),
    },
  },
});

export const ROOT = "/plugin/lake";
