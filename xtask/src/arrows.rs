//! Folders are layers: `cargo metadata` held against the layer table, its walls and its one exception.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The layers from the ground up. A crate uses layers before its own only.
const LAYERS: [&str; 5] = ["base", "core", "io", "plane", "bin"];

/// The last layer of crates without clock, randomness, sockets and tasks.
const PURE_LAST: usize = 1;

/// Crates that may use one of their own row.
const EXCEPTIONS: [(&str, &str); 1] = [
    // The admin surface is served over the control plane's service object.
    ("fairlead-admin", "fairlead-control"),
];

/// Crates whose tests, and only they, use one of their own row: no code of the product crosses it.
const TEST_EXCEPTIONS: [(&str, &str); 1] = [
    // A node is tried against a real relay.
    ("fairlead-node", "fairlead-worker"),
];

/// From the first crates, none of the second may be reached, not by others either.
const WALLS: [(&[&str], &[&str], &str); 4] = [
    (
        &["fairlead-worker", "fairlead-node"],
        &[
            "fairlead-store",
            "fairlead-placement",
            "fairlead-admin",
            "fairlead-control",
            "fairlead-traffic",
        ],
        "the data plane lives with the control plane dead",
    ),
    (
        &["fairlead-worker", "fairlead-node"],
        &["fairlead-dns-provider", "fairlead-dns-server"],
        "the data plane lives with the control plane dead",
    ),
    (
        &["fairlead-control", "fairlead-admin", "fairlead-traffic"],
        &["fairlead-transport", "fairlead-hop", "fairlead-stream"],
        "the control plane carries no byte of a user",
    ),
    (
        &["fairlead-worker"],
        &["fairlead-stream"],
        "a relay cannot parse what it carries",
    ),
];

/// Foreign crates that only the named crates of ours use.
const RESERVED: [(&str, &[&str], &str); 5] = [
    ("quinn", &["fairlead-transport"], "QUIC is a carrier"),
    (
        "redb",
        &["fairlead-store"],
        "engines lie behind the store's trait",
    ),
    (
        "sled",
        &["fairlead-store"],
        "engines lie behind the store's trait",
    ),
    ("prost", &["fairlead-rpc"], "protobuf is parsed in one place"),
    ("utoipa", &["fairlead-admin"], "the REST surface is the admin's"),
];

/// Foreign crates that nothing in `base` or `core` uses: clocks, randomness, sockets, tasks, encodings.
const IMPURE: [&str; 15] = [
    "tokio",
    "tokio-util",
    "quinn",
    "rustls",
    "tonic",
    "prost",
    "serde",
    "serde_json",
    "rand",
    "fastrand",
    "socket2",
    "rustix",
    "hyper",
    "tracing",
    "jiff",
];

/// The feature that lets a variable shift the clock: tests turn it on, no ordinary build has it.
const TEST_CLOCK: &str = "test-clock";

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// A crate as `cargo metadata` tells it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Package {
    /// Its name.
    pub(crate) name: String,
    /// Its manifest's path.
    pub(crate) manifest_path: String,
    /// What it depends on.
    pub(crate) dependencies: Vec<Dependency>,
    /// Its features, each with what it turns on.
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// A dependency as `cargo metadata` tells it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Dependency {
    /// The name of the crate depended on.
    pub(crate) name: String,
    /// `dev`, `build`, or nothing for an ordinary one.
    pub(crate) kind: Option<String>,
    /// The features of it that are asked for.
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// Reads the workspace and reports every arrow that points the wrong way.
pub(crate) fn run() -> Result<()> {
    let packages = packages()?;
    let faults = check(&packages);
    for fault in &faults {
        println!("arrows: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} arrows point the wrong way", faults.len());
    }
    println!("arrows: {} crates, all as the table has it", packages.len());
    Ok(())
}

/// The workspace's own crates.
pub(crate) fn packages() -> Result<Vec<Package>> {
    let root = crate::source::root()?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root);
    let output = command.output().context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok(metadata.packages)
}

fn check(packages: &[Package]) -> Vec<String> {
    let mut faults = Vec::new();
    let ours: BTreeMap<&str, &Package> = packages.iter().map(|p| (p.name.as_str(), p)).collect();
    for package in packages {
        let Some(row) = row(package) else {
            faults.push(format!(
                "`{}` lies in no layer: {}",
                package.name, package.manifest_path
            ));
            continue;
        };
        for dependency in &package.dependencies {
            match ours.get(dependency.name.as_str()) {
                Some(to) => faults.extend(arrow(package, row, to, dependency.kind.as_deref() == Some("dev"))),
                None => faults.extend(foreign(package, row, dependency)),
            }
        }
    }
    faults.extend(packages.iter().flat_map(clock));
    for (from, to, why) in WALLS {
        for name in from {
            let reached = reach(&ours, name);
            for wall in to.iter().filter(|wall| reached.contains(**wall)) {
                faults.push(format!("`{name}` reaches `{wall}`: {why}"));
            }
        }
    }
    faults
}

/// A crate's place in the table; tests and tools stand outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Layer(usize),
    /// The simulator: it uses the pure rows, and no crate uses it.
    OverCores,
    Outside,
}

fn row(package: &Package) -> Option<Row> {
    let folders: Vec<&str> = package.manifest_path.rsplit('/').collect();
    match folders.as_slice() {
        ["Cargo.toml", _, layer, "crates", ..] => LAYERS.iter().position(|l| l == layer).map(Row::Layer),
        ["Cargo.toml", "sim", "tests", ..] => Some(Row::OverCores),
        ["Cargo.toml", "xtask" | "testkit" | "e2e", ..] => Some(Row::Outside),
        _ => None,
    }
}

fn arrow(from: &Package, row_of: Row, to: &Package, tests_only: bool) -> Option<String> {
    let pair = (from.name.as_str(), to.name.as_str());
    let allowed = match (row_of, row(to)) {
        // Tests and tools drive the binary as anyone does: they use each other, and no product crate.
        (Row::Outside, Some(Row::Outside)) => true,
        (Row::Layer(above), Some(Row::Layer(below))) => {
            below < above || EXCEPTIONS.contains(&pair) || (tests_only && TEST_EXCEPTIONS.contains(&pair))
        }
        (Row::OverCores, Some(Row::Layer(below))) => below <= PURE_LAST,
        (Row::OverCores | Row::Outside | Row::Layer(_), _) => false,
    };
    (!allowed).then(|| {
        format!(
            "`{}` uses `{}`, which is not in a layer above its own row",
            from.name, to.name
        )
    })
}

fn foreign(package: &Package, row: Row, dependency: &Dependency) -> Option<String> {
    let (Row::Layer(layer), None | Some("build")) = (row, dependency.kind.as_deref()) else {
        return None;
    };
    let reserved = RESERVED.iter().find(|(name, ..)| *name == dependency.name);
    if let Some((name, allowed, why)) = reserved
        && !allowed.contains(&package.name.as_str())
    {
        return Some(format!(
            "`{}` uses `{name}`, reserved for {}: {why}",
            package.name,
            allowed.join(", ")
        ));
    }
    let pure = layer <= PURE_LAST;
    (pure && IMPURE.contains(&dependency.name.as_str()))
        .then(|| format!("`{}` is pure and uses `{}`", package.name, dependency.name))
}

/// Ways by which the test clock would get into an ordinary build.
fn clock(package: &Package) -> Vec<String> {
    let by_default = package
        .features
        .get("default")
        .is_some_and(|on| on.iter().any(|f| f.contains(TEST_CLOCK)));
    let ordinary = package
        .dependencies
        .iter()
        .filter(|d| d.kind.as_deref() != Some("dev"));
    let asked = ordinary
        .filter(|d| d.features.iter().any(|f| f == TEST_CLOCK))
        .map(|d| d.name.as_str());
    let mut faults: Vec<String> = asked
        .map(|d| {
            format!(
                "`{}` turns on `{TEST_CLOCK}` of `{d}` in every build",
                package.name
            )
        })
        .collect();
    if by_default {
        faults.push(format!(
            "`{}` has `{TEST_CLOCK}` among its default features",
            package.name
        ));
    }
    faults
}

/// Everything of ours that a crate reaches by ordinary and build dependencies.
fn reach(ours: &BTreeMap<&str, &Package>, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from.to_owned()];
    while let Some(name) = open.pop() {
        let Some(package) = ours.get(name.as_str()) else {
            continue;
        };
        let ordinary = package
            .dependencies
            .iter()
            .filter(|d| d.kind.as_deref() != Some("dev"));
        for dependency in ordinary.filter(|d| ours.contains_key(d.name.as_str())) {
            if reached.insert(dependency.name.clone()) {
                open.push(dependency.name.clone());
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(path: &str, name: &str, dependencies: &[&str]) -> Package {
        let ordinary = |name: &&str| Dependency {
            name: (*name).into(),
            kind: None,
            features: Vec::new(),
        };
        let dependencies = dependencies.iter().map(ordinary).collect();
        let manifest_path = format!("/x/{path}/Cargo.toml");
        Package {
            name: name.into(),
            manifest_path,
            dependencies,
            features: BTreeMap::new(),
        }
    }

    fn faults(packages: &[Package]) -> String {
        check(packages).join("\n")
    }

    #[test]
    fn arrows_point_up_only() {
        let good = [
            package("crates/base/model", "fairlead-model", &["thiserror"]),
            package("crates/core/trust", "fairlead-trust", &["fairlead-model"]),
            package(
                "crates/plane/control",
                "fairlead-control",
                &["fairlead-trust", "tokio"],
            ),
            package("crates/plane/admin", "fairlead-admin", &["fairlead-control"]),
            package("tests/e2e", "fairlead-e2e", &["fairlead-testkit", "quinn"]),
            package("tests/testkit", "fairlead-testkit", &[]),
        ];
        assert_eq!(faults(&good), "");
        let mut down = good.to_vec();
        down.push(package("crates/core/hop", "fairlead-hop", &["fairlead-trust"]));
        assert!(faults(&down).contains("`fairlead-hop` uses `fairlead-trust`"));
        let mut simulator = good.to_vec();
        simulator.push(package(
            "tests/sim",
            "fairlead-sim",
            &["fairlead-trust", "fastrand"],
        ));
        assert_eq!(faults(&simulator), "");
        simulator.push(package("crates/io/host", "fairlead-host", &["fairlead-sim"]));
        simulator.push(package("tests/sim", "fairlead-sim", &["fairlead-control"]));
        assert!(faults(&simulator).contains("`fairlead-host` uses `fairlead-sim`"));
        assert!(faults(&simulator).contains("`fairlead-sim` uses `fairlead-control`"));
        let mut product = good.to_vec();
        product.push(package("xtask", "xtask", &["fairlead-model"]));
        assert!(faults(&product).contains("`xtask` uses `fairlead-model`"));
        let mut lost = good.to_vec();
        lost.push(package("crates/misc/util", "fairlead-util", &[]));
        assert!(faults(&lost).contains("lies in no layer"));
    }

    #[test]
    fn tests_may_cross_a_row_where_that_is_noted() {
        let mut packages = [
            package("crates/plane/node", "fairlead-node", &["fairlead-worker"]),
            package("crates/plane/worker", "fairlead-worker", &[]),
        ];
        assert!(faults(&packages).contains("`fairlead-node` uses `fairlead-worker`"));
        packages[0].dependencies[0].kind = Some("dev".into());
        assert_eq!(faults(&packages), "");
    }

    #[test]
    fn walls_hold_over_detours_and_cores_stay_pure() {
        let packages = [
            package("crates/io/store", "fairlead-store", &["redb"]),
            package("crates/io/telemetry", "fairlead-telemetry", &[]),
            package(
                "crates/plane/worker",
                "fairlead-worker",
                &["fairlead-supervisor", "sled"],
            ),
            package(
                "crates/plane/supervisor",
                "fairlead-supervisor",
                &["fairlead-store"],
            ),
            package("crates/core/stream", "fairlead-stream", &["tokio"]),
        ];
        let faults = faults(&packages);
        assert!(
            faults.contains("`fairlead-worker` reaches `fairlead-store`"),
            "{faults}"
        );
        assert!(
            faults.contains("`fairlead-worker` uses `sled`, reserved"),
            "{faults}"
        );
        assert!(
            faults.contains("`fairlead-stream` is pure and uses `tokio`"),
            "{faults}"
        );
    }

    #[test]
    fn the_test_clock_stays_out_of_ordinary_builds() {
        let mut host = package("crates/io/host", "fairlead-host", &[]);
        host.features.insert(TEST_CLOCK.into(), Vec::new());
        let mut bin = package("crates/bin/fairlead", "fairlead", &["fairlead-host"]);
        bin.features
            .insert(TEST_CLOCK.into(), vec!["fairlead-host/test-clock".into()]);
        assert_eq!(faults(&[host.clone(), bin.clone()]), "");
        let mut asks = bin.clone();
        asks.dependencies[0].features = vec![TEST_CLOCK.into()];
        assert!(faults(&[host.clone(), asks]).contains("turns on `test-clock` of `fairlead-host`"));
        bin.features.insert("default".into(), vec![TEST_CLOCK.into()]);
        assert!(faults(&[host, bin]).contains("among its default features"));
    }
}
