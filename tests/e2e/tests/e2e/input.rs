//! Bad input: all faults listed together, each naming its place and what is allowed, before anything
//! starts.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Answer, Pool, pool};
use reqwest::Method;
use serde_json::{Value, json};

const USAGE: i32 = 64;

fn lists(answer: &Answer, words: &[&str]) -> Result<()> {
    ensure!(answer.code == Some(USAGE), "wanted exit {USAGE}: {answer:?}");
    for word in words {
        ensure!(
            answer.stderr.contains(word),
            "the message lacks `{word}`:\n{}",
            answer.stderr
        );
    }
    Ok(())
}

#[test]
fn flags_of_daemons_and_up_list_all_faults_before_anything_starts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let dir = folder.path().join("none");
    let dir = dir.to_str().context("path")?;
    let run = |arguments: &[&str]| pool::run(arguments, "", &[]);

    let control = run(&[
        "run",
        "control",
        "--dir",
        dir,
        "--listen",
        "nine",
        "--advertise",
        "[::1",
        "--metrics",
        "x:y",
        "--store",
        "files",
    ])?;
    lists(
        &control,
        &[
            "listen",
            "nine",
            "advertise",
            "[::1",
            "metrics",
            "store",
            "redb",
            "sled",
        ],
    )?;
    let up = run(&[
        "up",
        "--dir",
        dir,
        "--relays",
        "99",
        "--ports",
        "some",
        "--link",
        "x",
        "--link",
        "a=127.0.0.1:1,to=,class=fast",
    ])?;
    lists(
        &up,
        &["relays", "16", "ports", "auto", "link", "fast", "database"],
    )?;
    let enrol = run(&[
        "enrol",
        "node",
        "--dir",
        dir,
        "--control",
        "fe80::1::2",
        "--ca-pin",
        "sha1:00",
    ])?;
    lists(&enrol, &["control", "ca-pin", "sha256"])?;
    lists(&run(&["run", "nothing"])?, &["nothing"])?;
    lists(
        &run(&["link", "add"])?,
        &["--from", "--to", "--target", "--listen"],
    )?;
    ensure!(!folder.path().join("none").exists(), "something was made");

    let settings = folder.path().join("control.toml");
    std::fs::write(
        &settings,
        "listen = \"nine\"\nlissten = \"127.0.0.1:1\"\nlab = \"yes\"\n",
    )?;
    let path = settings.to_str().context("path")?;
    let from_file = run(&[
        "run",
        "control",
        "--dir",
        dir,
        "--advertise",
        "127.0.0.1:1",
        "--settings",
        path,
    ])?;
    lists(&from_file, &["control.toml", "listen", "lissten", "lab"])?;
    ensure!(!folder.path().join("none").exists(), "something was made");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_names_and_addresses_list_all_faults_together() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let rest = pool.rest()?;
    let before = rest.get("/v1/links").await?;

    let cli = pool.cli(&[
        "link",
        "add",
        "No Such Name!",
        "--from",
        "nobody",
        "--to",
        "beta",
        "--target",
        "::1:80",
        "--listen",
        "127.0.0.1",
        "--class",
        "fast",
    ])?;
    lists(&cli, &["NAME", "--target", "--listen", "--class", "database"])?;

    let body = json!({"name": "", "from": "nobody", "to": "beta", "target": "127.0.0.1:99999",
                      "listen": "localhost", "class": "fast"});
    let (status, answer) = rest.send(Method::POST, "/v1/links", Some(&body)).await?;
    ensure!(status == 400, "{status} {answer}");
    let faults = answer
        .pointer("/error/faults")
        .and_then(Value::as_array)
        .context("no faults")?;
    let fields: Vec<&str> = faults.iter().filter_map(|f| f.get("field")?.as_str()).collect();
    for field in ["name", "from", "target", "listen", "class"] {
        ensure!(fields.contains(&field), "`{field}` is not among {fields:?}");
    }
    ensure!(faults.iter().all(|f| {
        f.get("message")
            .and_then(Value::as_str)
            .is_some_and(|m| !m.is_empty())
    }));

    // An unknown field beside a missing one: both are named.
    let body = json!({"name": "x", "from": "alpha", "to": "beta", "listen": "127.0.0.1:1", "colour": "red"});
    let (status, answer) = rest.send(Method::POST, "/v1/links", Some(&body)).await?;
    let text = answer.to_string();
    ensure!(
        status == 400 && text.contains("colour") && text.contains("target"),
        "{status} {text}"
    );
    for broken in ["{", "[]", "\"x\"", "{\"name\": 1}"] {
        let (status, answer) = rest
            .send_text(Method::POST, "/v1/links", broken.to_owned())
            .await?;
        ensure!(status == 400, "{broken}: {status} {answer}");
        ensure!(answer.pointer("/error/code").is_some(), "{broken}: {answer}");
    }
    let huge = format!("{{\"name\": \"{}\"}}", "x".repeat(100_000));
    let (status, _) = rest.send_text(Method::POST, "/v1/links", huge).await?;
    ensure!(status == 413, "{status}");
    let (status, answer) = rest.send(Method::GET, "/v1/nothing", None).await?;
    ensure!(
        status == 404 && answer.pointer("/error/code").is_some(),
        "{status} {answer}"
    );
    let (status, _) = rest.send(Method::PATCH, "/v1/links", Some(&json!({}))).await?;
    ensure!(status == 405, "{status}");
    ensure!(
        rest.get("/v1/links").await? == before,
        "a refused request changed something"
    );

    // The interface describes itself.
    let description = rest.get("/v1/openapi.json").await?;
    ensure!(
        description
            .get("openapi")
            .and_then(Value::as_str)
            .is_some_and(|v| v.starts_with("3.1"))
    );
    ensure!(
        description.pointer("/paths/~1v1~1links").is_some(),
        "links are not described"
    );
    Ok(())
}
