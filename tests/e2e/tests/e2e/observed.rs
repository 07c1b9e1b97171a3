//! Metrics, alert rules and the dashboard, held against a real Prometheus and a real pool (R-UI-03).

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::metrics::{Scrape, get};
use fairlead_testkit::{Pool, Target, Warden, openmetrics, target, verified, wait};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;

/// Prometheus starts in a second, and scrapes twice in another one.
const PROMETHEUS_LIMIT: Duration = Duration::from_secs(60);

/// A pool that carries something, with the address of every metrics page of it, by job.
struct Watched {
    pages: BTreeMap<&'static str, Vec<String>>,
    _open: TcpStream,
    _pool: Pool,
    _echo: Target,
}

async fn watched_pool() -> Result<Watched> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .to("echo", echo.address())?
        .to("gone", echo.address())?
        .start()
        .await?;
    let at = pool.listen("echo")?;
    // Each relay has enforced a revocation.
    pool.cli(&["link", "rm", "gone"])?.ok()?;
    for seed in 0..3 {
        verified::echo_once(at, seed, 10_000).await?;
    }
    let mut open = TcpStream::connect(at).await?;
    verified::echo_on(&mut open, 9, 1000).await?;
    let file = pool.file()?;
    let mut pages = BTreeMap::from([("fairlead-control", vec![file.control.metrics.clone()])]);
    for relay in &file.relays {
        let runtime = pool.dir().join("relays").join(&relay.name).join("runtime.json");
        let runtime: Value = serde_json::from_slice(&std::fs::read(&runtime)?)?;
        let url = runtime
            .get("metrics_url")
            .and_then(Value::as_str)
            .context("a supervisor without metrics")?;
        pages
            .entry("fairlead-supervisor")
            .or_default()
            .push(url.to_owned());
        pages
            .entry("fairlead-worker")
            .or_default()
            .push(relay.metrics.clone());
    }
    let nodes = file.nodes.iter().map(|node| node.metrics.clone());
    pages.insert("fairlead-node", nodes.collect());
    Ok(Watched {
        pages,
        _open: open,
        _pool: pool,
        _echo: echo,
    })
}

/// R-UI-03: every page is strict OpenMetrics to who asks for it and clean Prometheus text to others,
/// and holds nothing that the reference page does not tell of.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metrics_page_is_strict_and_documented() -> Result<()> {
    let watched = watched_pool().await?;
    let pages = &watched.pages;
    let reference = std::fs::read_to_string(repository().join("docs/reference/metrics.md"))?;
    for url in pages.values().flatten() {
        let page = get(url, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await?;
        ensure!(
            page.head
                .to_ascii_lowercase()
                .contains("content-type: application/openmetrics-text; version=1.0.0"),
            "{}",
            page.head
        );
        let families = openmetrics::parse(&page.body).with_context(|| url.clone())?;
        for (name, family) in &families {
            let whole = match family.kind.as_str() {
                "counter" => format!("{name}_total"),
                "info" => format!("{name}_info"),
                _ => name.clone(),
            };
            ensure!(
                reference.contains(&format!("`{whole}`")),
                "{whole} is not in docs/reference/metrics.md"
            );
        }
        let plain = get(url, "*/*").await?;
        ensure!(
            plain
                .head
                .to_ascii_lowercase()
                .contains("content-type: text/plain; version=0.0.4"),
            "{}",
            plain.head
        );
        promtool_takes(&plain.body).with_context(|| url.clone())?;
    }
    let node = pages["fairlead-node"].first().context("no node")?;
    let alpha = Scrape::of(node).await?;
    for name in [
        "fairlead_grants_left_seconds",
        "fairlead_certificate_left_seconds",
    ] {
        let left = alpha.sum(name, &[]).with_context(|| name.to_owned())?;
        ensure!(left > 3600.0, "{name} {left}");
    }
    let worker = pages["fairlead-worker"].first().context("no worker")?;
    let worker = Scrape::of(worker).await?;
    let left = worker
        .sum("fairlead_policy_lease_left_seconds", &[])
        .context("no lease")?;
    let age = worker.sum("fairlead_policy_age_seconds", &[]).context("no age")?;
    ensure!(left > 71.0 * 3600.0 && age < 600.0, "left {left}, age {age}");
    Ok(())
}

/// R-UI-03: the alert rules and the dashboard in deploy/ work with a real Prometheus.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_takes_rules_and_dashboard() -> Result<()> {
    let deploy = repository().join("deploy/prometheus");
    for check in [
        ["check", "rules", "fairlead.rules.yml"],
        ["test", "rules", "fairlead.test.yml"],
    ] {
        promtool(&deploy, &check)?;
    }
    promtool(&deploy, &["check", "config", "prometheus.yml"])?;
    let watched = watched_pool().await?;
    let pages = &watched.pages;
    let (prometheus, _warden) = start_prometheus(&deploy, pages)?;
    let targets: usize = pages.values().map(Vec::len).sum();
    wait::until("every target is scraped twice", PROMETHEUS_LIMIT, || async {
        let seen = ask(&prometheus, "count(count_over_time(up[1m]) >= 2 and up == 1)").await?;
        let seen = seen.first().and_then(|s| s["value"][1].as_str()).unwrap_or("0");
        ensure!(seen == targets.to_string(), "{seen} of {targets}");
        Ok(())
    })
    .await?;
    let queries = dashboard_queries()?;
    ensure!(
        queries.len() > 30,
        "the dashboard lost its queries: {}",
        queries.len()
    );
    // A round trip is measured some seconds after its session came up.
    wait::until("every query has data", PROMETHEUS_LIMIT, || async {
        for query in &queries {
            let series = ask(&prometheus, &query.replace("$__rate_interval", "1m")).await?;
            ensure!(!series.is_empty(), "no data for `{query}`");
        }
        Ok(())
    })
    .await?;
    println!("{} targets, {} queries of the dashboard", targets, queries.len());
    let rules: Value = serde_json::from_str(&get(&format!("{prometheus}/api/v1/rules"), "*/*").await?.body)?;
    let rules = rules["data"]["groups"][0]["rules"]
        .as_array()
        .context("no rules")?;
    ensure!(rules.len() >= 10, "only {} rules", rules.len());
    for rule in rules {
        ensure!(rule["health"] != "err", "{rule}");
        // A healthy pool of one host has no second failure domain; nothing else is to be told.
        let quiet = rule["state"] == "inactive" || rule["name"] == "FairleadNoSecondFailureDomain";
        ensure!(quiet, "an alert about a healthy pool: {rule}");
    }
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn promtool(folder: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new("promtool")
        .args(arguments)
        .current_dir(folder)
        .output()
        .context("promtool, of Debian's package prometheus")?;
    if !output.status.success() {
        bail!(
            "promtool {arguments:?}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Whether `promtool check metrics` finds nothing to say about a page.
fn promtool_takes(page: &str) -> Result<()> {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("promtool, of Debian's package prometheus")?;
    let mut input = child.stdin.take().context("no input")?;
    input.write_all(page.as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    ensure!(
        output.status.success() && said.is_empty(),
        "{}",
        String::from_utf8_lossy(&said)
    );
    Ok(())
}

/// Starts a Prometheus of the test's own with our rules; its address as a URL.
fn start_prometheus(deploy: &Path, pages: &BTreeMap<&str, Vec<String>>) -> Result<(String, Warden)> {
    let dir = tempfile::Builder::new().prefix("flprom-").tempdir()?.keep();
    let warden = Warden::over(&dir)?;
    let rules = deploy.canonicalize()?.join("fairlead.rules.yml");
    let mut config = format!(
        "global:\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  evaluation_interval: 1s\n\
         rule_files: ['{}']\nscrape_configs:\n",
        rules.display()
    );
    for (job, urls) in pages {
        let hosts: Vec<String> = urls
            .iter()
            .filter_map(|url| Some(format!("'{}'", url.strip_prefix("http://")?.split('/').next()?)))
            .collect();
        config.push_str(&format!(
            "  - job_name: {job}\n    static_configs:\n      - targets: [{}]\n",
            hosts.join(", ")
        ));
    }
    let file = dir.join("prometheus.yml");
    std::fs::write(&file, config)?;
    let listen = target::closed_port()?;
    let log = std::fs::File::create(dir.join("log"))?;
    Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", dir.join("data").display()))
        .arg(format!("--web.listen-address={listen}"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("prometheus, of Debian's package of that name")?;
    Ok((format!("http://{listen}"), warden))
}

/// Evaluates a query; its series.
async fn ask(prometheus: &str, query: &str) -> Result<Vec<Value>> {
    let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let page = get(&format!("{prometheus}/api/v1/query?query={encoded}"), "*/*").await?;
    let answer: Value = serde_json::from_str(&page.body)?;
    ensure!(
        answer.get("status").is_some_and(|s| s == "success"),
        "{query}: {answer}"
    );
    let result = answer.pointer("/data/result").and_then(Value::as_array);
    Ok(result.cloned().unwrap_or_default())
}

/// Every query of the dashboard.
fn dashboard_queries() -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(repository().join("deploy/grafana/fairlead.json"))?;
    let board: Value = serde_json::from_str(&text)?;
    let panels = board
        .get("panels")
        .and_then(Value::as_array)
        .context("no panels")?;
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    Ok(targets
        .filter_map(|t| Some(t["expr"].as_str()?.to_owned()))
        .collect())
}
