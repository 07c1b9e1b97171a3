//! A real browser: Chromium, headless, driven by its own `chromedriver` over the WebDriver protocol
//! (W3C), of which a test needs a dozen calls.

use crate::{Warden, wait};
use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A page does what a test waits for within this, on two busy cores.
const PAGE_LIMIT: Duration = Duration::from_secs(30);
/// Starting a browser takes seconds where others compile.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Keys that have no character, as WebDriver numbers them.
pub mod key {
    /// Tab.
    pub const TAB: &str = "\u{e004}";
    /// Enter.
    pub const ENTER: &str = "\u{e007}";
    /// Shift, held until the end of the keys that are pressed together.
    pub const SHIFT: &str = "\u{e008}";
    /// Escape.
    pub const ESCAPE: &str = "\u{e00c}";
}

/// A browser with a profile of its own and one window. Its processes end with its [`Warden`].
#[derive(Debug)]
pub struct Browser {
    client: Client,
    session: String,
    driver: Child,
    // The driver writes on; without a reader it would end.
    _out: BufReader<ChildStdout>,
    _warden: Warden,
}

impl Browser {
    /// Starts it. Certificates below the CA of the pin (`sha256:` and hexadecimal digits) are valid.
    ///
    /// # Errors
    /// When `chromium` or `chromedriver` are missing or do not start.
    pub async fn start(ca_pin: &str) -> Result<Self> {
        let trusted = browser_pin(ca_pin)?;
        let dir = tempfile::Builder::new().prefix("flb-").tempdir()?.keep();
        let warden = Warden::over(&dir)?;
        let (driver, out, port) = driver(&dir)?;
        let arguments = [
            "--headless".to_owned(),
            "--no-sandbox".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-quic".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--no-first-run".to_owned(),
            "--disable-background-networking".to_owned(),
            "--disable-component-update".to_owned(),
            "--disable-sync".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", dir.join("profile").display()),
            format!("--ignore-certificate-errors-spki-list={trusted}"),
        ];
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut browser = Self {
            client: Client::builder().timeout(START_LIMIT).build()?,
            session: format!("http://127.0.0.1:{port}/session"),
            driver,
            _out: out,
            _warden: warden,
        };
        let capabilities = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let made = browser.ask(Method::POST, "", capabilities).await?;
        let id = text(&made, "sessionId").context("no session id")?;
        browser.session = format!("{}/{id}", browser.session);
        Ok(browser)
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value> {
        let mut request = self.client.request(method, format!("{}{path}", self.session));
        if !body.is_null() {
            request = request.json(&body);
        }
        let answer: Value = request.send().await?.json().await?;
        let value = answer.get("value").cloned().unwrap_or_default();
        if let Some(error) = text(&value, "error") {
            bail!("{path}: {error}: {}", text(&value, "message").unwrap_or_default());
        }
        Ok(value)
    }

    /// Loads a page.
    ///
    /// # Errors
    /// When it cannot be loaded; a certificate that is not trusted is an error, too.
    pub async fn open(&self, url: &str) -> Result<()> {
        self.ask(Method::POST, "/url", json!({ "url": url })).await?;
        Ok(())
    }

    /// Runs the body of a function in the page, and gives what it returns.
    ///
    /// # Errors
    /// When it throws.
    pub async fn run(&self, script: &str) -> Result<Value> {
        let body = json!({"script": script, "args": []});
        self.ask(Method::POST, "/execute/sync", body).await
    }

    /// Looks until the script returns something that counts as true, and gives it.
    ///
    /// # Errors
    /// When it does not in time; with the text of the page.
    pub async fn until(&self, what: &str, script: &str) -> Result<Value> {
        let look = || async move {
            let value = self.run(script).await?;
            let is_false = value.is_null() || value == false || value == "" || value == 0;
            ensure!(!is_false, "{value}");
            Ok::<Value, anyhow::Error>(value)
        };
        match wait::until(what, PAGE_LIMIT, look).await {
            Ok((value, _)) => Ok(value),
            Err(error) => {
                let page = self.run("return document.body.innerText").await;
                let page = page.unwrap_or_default();
                Err(error.context(format!("the page says: {}", page.as_str().unwrap_or("nothing"))))
            }
        }
    }

    /// Clicks the first element of a CSS selector, as a pointer does, once there is one.
    ///
    /// # Errors
    /// When there is none, or something lies over it.
    pub async fn click(&self, selector: &str) -> Result<()> {
        let there = format!("return document.querySelector({}) !== null", json!(selector));
        self.until(selector, &there).await?;
        let find = json!({"using": "css selector", "value": selector});
        let found = self.ask(Method::POST, "/element", find).await?;
        let element = found.as_object().and_then(|object| object.values().next());
        let element = element.and_then(Value::as_str).context("no element")?;
        let path = format!("/element/{element}/click");
        self.ask(Method::POST, &path, json!({})).await?;
        Ok(())
    }

    /// Types into whatever has the focus.
    ///
    /// # Errors
    /// When the browser is gone.
    pub async fn keys(&self, typed: &str) -> Result<()> {
        let mut actions = Vec::new();
        let mut held = Vec::new();
        for character in typed.chars() {
            let value = character.to_string();
            actions.push(json!({"type": "keyDown", "value": value}));
            if value == key::SHIFT {
                held.push(json!({"type": "keyUp", "value": value}));
            } else {
                actions.push(json!({"type": "keyUp", "value": value}));
            }
        }
        actions.append(&mut held);
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": actions}]});
        self.ask(Method::POST, "/actions", body).await?;
        Ok(())
    }

    /// A call of the browser's own protocol: what WebDriver has no word for.
    ///
    /// # Errors
    /// When the browser refuses it.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Result<Value> {
        let body = json!({"cmd": command, "params": parameters});
        self.ask(Method::POST, "/goog/cdp/execute", body).await
    }

    /// The size of the window in CSS pixels, as a phone or a desk has it.
    ///
    /// # Errors
    /// When the browser is gone.
    pub async fn resize(&self, width: u32, height: u32, is_phone: bool) -> Result<()> {
        let scale = if is_phone { 2 } else { 1 };
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": scale, "mobile": is_phone});
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)
            .await?;
        Ok(())
    }

    /// What the page is told that its reader prefers: `prefers-color-scheme` is `dark`, say.
    ///
    /// # Errors
    /// When the browser is gone.
    pub async fn prefer(&self, features: &[(&str, &str)]) -> Result<()> {
        let features: Vec<Value> = features
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }))
            .await?;
        Ok(())
    }

    /// Writes what is to be seen into a PNG file.
    ///
    /// # Errors
    /// When it cannot be taken or written.
    pub async fn screenshot(&self, file: &Path) -> Result<()> {
        let shot = self
            .devtools("Page.captureScreenshot", json!({"format": "png"}))
            .await?;
        let picture = text(&shot, "data").context("no picture")?;
        std::fs::write(file, STANDARD.decode(picture)?)?;
        Ok(())
    }

    /// Errors and warnings that the page has logged since the last call: refused by its policy,
    /// thrown by its scripts, not found.
    ///
    /// # Errors
    /// When the browser is gone.
    pub async fn complaints(&self) -> Result<Vec<String>> {
        let entries = self
            .ask(Method::POST, "/se/log", json!({"type": "browser"}))
            .await?;
        let entries = entries.as_array().cloned().unwrap_or_default();
        let bad = entries
            .iter()
            .filter(|entry| ["SEVERE", "WARNING"].contains(&text(entry, "level").unwrap_or_default()));
        Ok(bad
            .map(|entry| text(entry, "message").unwrap_or_default().to_owned())
            .collect())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts the driver, and reads its port from its first lines.
fn driver(dir: &Path) -> Result<(Child, BufReader<ChildStdout>, u16)> {
    let mut command = Command::new("chromedriver");
    command
        .arg("--port=0")
        .arg(format!("--log-path={}", dir.join("driver.log").display()))
        .env("HOME", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command
        .spawn()
        .context("no chromedriver: install the packages chromium and chromium-driver")?;
    let out = child.stdout.take().context("no standard output")?;
    let mut out = BufReader::new(out);
    let port = loop {
        let mut line = String::new();
        ensure!(out.read_line(&mut line)? > 0, "the driver ended");
        if let Some((_, port)) = line.split_once("successfully on port ") {
            break port.trim().trim_end_matches('.').parse()?;
        }
    };
    Ok((child, out, port))
}

/// A text of an object.
fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str)
}

/// A CA pin (`sha256:` and hexadecimal digits) as browsers write it.
fn browser_pin(ca_pin: &str) -> Result<String> {
    let digits = ca_pin.strip_prefix("sha256:").context("no pin")?;
    Ok(STANDARD.encode(hex::decode(digits)?))
}

/// Where pictures go that somebody wants to look at: the folder that `FAIRLEAD_PICTURES` names.
#[must_use]
pub fn pictures() -> Option<PathBuf> {
    std::env::var_os("FAIRLEAD_PICTURES").map(PathBuf::from)
}
