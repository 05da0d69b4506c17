// One script that Airflow's UI imports. React, ReactDOM and the router come from globals of Airflow's page; the theme
// comes as CSS variables of its page.
import { defineConfig } from "vite";

const globals: Record<string, string> = {
  react: "React",
  "react-dom": "ReactDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-router-dom": "ReactRouterDOM",
};

export default defineConfig(({ mode }) => ({
  define: { "process.env.NODE_ENV": JSON.stringify("production") },
  build:
    mode === "host"
      ? {
          // A page with the same globals, for tests without Airflow.
          outDir: "dist-host",
          emptyOutDir: true,
          lib: { entry: "src/host.tsx", formats: ["iife"], name: "Host", fileName: () => "host.js" },
        }
      : {
          outDir: "dist",
          emptyOutDir: true,
          target: "es2022",
          lib: { entry: "src/main.tsx", formats: ["iife"], name: "LakePages", fileName: () => "lake.js" },
          rollupOptions: { external: Object.keys(globals), output: { globals } },
        },
}));
