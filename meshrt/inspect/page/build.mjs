// Bundles the page: src and the packages that it imports become bundle/page.js and bundle/page.css, and the licences of
// those packages bundle/LICENSES.txt; bundle/SOURCES.sha256 has the digest of what all that was made from. `--check`
// writes nothing, and fails if the bundle is not that of the sources.

import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const TARGET = ["chrome111", "firefox113", "safari16.4"];

const bundled = await build({
  absWorkingDir: here, entryPoints: ["src/main.js"], bundle: true, minify: true, format: "iife", target: TARGET, write: false,
  metafile: true, legalComments: "none", charset: "ascii",
});
const style = await build({ absWorkingDir: here, entryPoints: ["src/page.css"], minify: true, target: TARGET, write: false, charset: "ascii" });

const packages = new Set();
for (const input of Object.keys(bundled.metafile.inputs)) {
  const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (found) packages.add(found[1]);
}
const licences = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  if (!["ISC", "MIT", "BSD-3-Clause"].includes(license)) throw new Error(`${name} has the licence ${license}`);
  const file = readdirSync(folder).find((n) => /^licen[sc]e/i.test(n));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});

// Whoever has no npm can still tell whether the bundle is that of the sources: name, size and bytes of each, in order.
const digest = createHash("sha256");
for (const name of [...readdirSync(join(here, "src")).sort().map((n) => `src/${n}`), "build.mjs", "package.json", "package-lock.json"]) {
  const bytes = readFileSync(join(here, name));
  digest.update(`${name} ${bytes.length}\n`).update(bytes);
}

const files = {
  "SOURCES.sha256": `${digest.digest("hex")}\n`,
  "page.js": bundled.outputFiles[0].text,
  "page.css": style.outputFiles[0].text,
  "LICENSES.txt": `The page contains these packages.\n\n${licences.join("\n----\n\n")}`,
};
const isCheck = process.argv.includes("--check");
for (const [name, text] of Object.entries(files)) {
  const path = join(here, "bundle", name);
  if (!isCheck) writeFileSync(path, text);
  else if (!existsSync(path) || readFileSync(path, "utf8") !== text) {
    console.error(`bundle/${name} is not that of the sources; run make page`);
    process.exitCode = 1;
  }
}
