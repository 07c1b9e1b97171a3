//! R-UI-01: the console, in a real browser, against a real pool: with a pointer, with a keyboard
//! alone, in the dark, on a phone; and attacked.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::browser::{self, Browser, key};
use fairlead_testkit::{Pool, Role, Target, Warden, binary, pool, target};
use serde_json::json;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A pool with a browser on its console.
struct Scene {
    pool: Pool,
    browser: Browser,
    token: String,
    hosts: Hosts,
    _echo: Target,
}

/// Daemons that a test enrols beside the pool's own, as hosts of their own would run them.
struct Hosts {
    dir: PathBuf,
    daemons: Vec<Child>,
    _warden: Warden,
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// What the console shows of a member that was added.
struct Shown {
    command: String,
    token: String,
}

impl Hosts {
    fn new() -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("flh-").tempdir()?.keep();
        Ok(Self {
            _warden: Warden::over(&dir)?,
            dir,
            daemons: Vec::new(),
        })
    }

    /// Does what the install command says, with folders of the test's own, and runs the daemon.
    fn install(&mut self, shown: &Shown, name: &str, more: &[&str]) -> Result<()> {
        let Shown { command, token } = shown;
        ensure!(!command.contains(token), "the command holds the token");
        let rest = command
            .strip_prefix("fairlead ")
            .with_context(|| format!("no install command: {command}"))?;
        let (arguments, _) = rest.split_once(" --dir ").context("no folder")?;
        let dir = self.dir.join(name);
        let (dir_text, key) = (
            dir.to_str().context("path")?,
            self.dir.join(format!("{name}.key")),
        );
        let mut enrol: Vec<&str> = arguments.split(' ').collect();
        let role = enrol.get(1).copied().context("no role")?;
        enrol.extend([
            "--dir",
            dir_text,
            "--host-key-file",
            key.to_str().context("path")?,
        ]);
        enrol.extend(more);
        pool::run(&enrol, token, &[])?.ok()?;
        let daemon = if role == "relay" { "supervisor" } else { role };
        let log = std::fs::File::create(self.dir.join(format!("{name}.log")))?;
        let child = Command::new(binary::fairlead()?)
            .args(["run", daemon, "--dir", dir_text])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        self.daemons.push(child);
        Ok(())
    }
}

impl Scene {
    async fn set() -> Result<Self> {
        let echo = Target::echo().await?;
        let pool = Pool::builder()
            .relays(2)
            .to("echo", echo.address())?
            .start()
            .await?;
        let status = pool.rest()?.get("/v1/status").await?;
        let pin = status
            .get("ca_pin")
            .and_then(|pin| pin.as_str())
            .context("no pin")?;
        let file = pool.file()?;
        let token = std::fs::read_to_string(&file.control.admin_token_file)?;
        let browser = Browser::start(pin).await?;
        browser.resize(1280, 800, false).await?;
        browser.prefer(&[("prefers-color-scheme", "light")]).await?;
        browser.open(&file.control.url).await?;
        Ok(Self {
            pool,
            browser,
            token: token.trim().to_owned(),
            hosts: Hosts::new()?,
            _echo: echo,
        })
    }

    /// Logs in with a token, by keyboard: the field has the focus.
    async fn log_in(&self, token: &str) -> Result<()> {
        let field = "return document.activeElement.id === 'token'";
        self.browser.until("the login has the focus", field).await?;
        self.browser.keys(token).await?;
        self.browser.keys(key::ENTER).await
    }

    async fn is_shown(&self, text: &str) -> Result<()> {
        let script = format!("return document.body.innerText.includes({})", json!(text));
        self.browser.until(text, &script).await.map(drop)
    }

    /// Walks on with Tab until the element of a selector has the focus.
    async fn tab_to(&self, selector: &str) -> Result<()> {
        for _ in 0..60 {
            self.browser.keys(key::TAB).await?;
            let script = format!("return document.activeElement.matches({})", json!(selector));
            if self.browser.run(&script).await? == true {
                let outline = "const s = getComputedStyle(document.activeElement);
                    return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2";
                ensure!(
                    self.browser.run(outline).await? == true,
                    "no visible focus: {selector}"
                );
                return Ok(());
            }
        }
        anyhow::bail!("no way by keyboard to {selector}")
    }

    /// The install command and its token, as the dialog shows them.
    async fn shown(&self) -> Result<Shown> {
        let text = async |what: &str| {
            let script =
                format!("return document.querySelector('dialog pre[aria-label=\"{what}\"]')?.textContent");
            let text = self.browser.until(what, &script).await?;
            anyhow::Ok(text.as_str().context("no text")?.to_owned())
        };
        Ok(Shown {
            command: text("Install command").await?,
            token: text("Token").await?,
        })
    }

    async fn picture(&self, name: &str) -> Result<()> {
        match browser::pictures() {
            Some(folder) => self.browser.screenshot(&folder.join(name)).await,
            None => Ok(()),
        }
    }

    /// What the page complains of, beside requests that were refused.
    async fn complaints(&self) -> Result<Vec<String>> {
        let mut complaints = self.browser.complaints().await?;
        complaints.retain(|text| !text.contains("Failed to load resource"));
        Ok(complaints)
    }
}

const NO_DIALOG: &str = "return document.querySelector('dialog') === null";

/// By pointer: a wrong token, the login, what is live, and a relay, a node and a link added by forms
/// that show the command and close by themselves; removed again; the control plane killed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_sees_the_pool_live_and_adds_to_it() -> Result<()> {
    let mut scene = Scene::set().await?;
    scene.log_in("wrong").await?;
    scene.is_shown("wrong or was revoked").await?;
    scene.picture("login.png").await?;
    scene.log_in(&scene.token).await?;
    scene.is_shown("All is well").await?;
    let browser = &scene.browser;
    ensure!(
        browser.run("return document.cookie").await? == "",
        "a script reads the cookie"
    );
    let kept = "return JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + location.href";
    let kept = browser.run(kept).await?.to_string();
    ensure!(!kept.contains(&scene.token) && kept.contains("{}"), "{kept}");

    // A tunnel, and what another admin does, without a reload.
    let connection = tokio::net::TcpStream::connect(scene.pool.listen("echo")?).await?;
    let tunnels = "return [...document.querySelectorAll('.tile')]
        .some(t => t.innerText.includes('Live tunnels') && t.querySelector('.value').innerText === '1')";
    browser.until("the tunnel is counted", tunnels).await?;
    drop(connection);
    scene
        .pool
        .rest()?
        .post("/v1/nodes", &json!({"name": "seen-live"}))
        .await?;
    browser.click("nav a[href='#/nodes']").await?;
    scene.is_shown("seen-live").await?;
    scene.pool.rest()?.delete("/v1/nodes/seen-live").await?;
    let gone = "return !document.body.innerText.includes('seen-live')";
    browser.until("a removal is seen live", gone).await?;

    // A node: faults at their fields, then the command, then online.
    browser.click("[data-act=add-node]").await?;
    browser.keys("Not A Name").await?;
    browser.click("dialog button[type=submit]").await?;
    let invalid = "return document.querySelector('#field-name[aria-invalid=true]') !== null
        && document.querySelector('#field-name-fault').innerText !== ''";
    browser.until("the fault stands at its field", invalid).await?;
    browser
        .run(
            "document.querySelector('#field-name').value = ''; document.querySelector('#field-name').focus()",
        )
        .await?;
    browser.keys("gamma").await?;
    browser.click("dialog button[type=submit]").await?;
    let shown = scene.shown().await?;
    scene.is_shown("Waiting for the host to enrol").await?;
    scene.hosts.install(&shown, "gamma", &[])?;
    let browser = &scene.browser;
    browser.until("the dialog closes by itself", NO_DIALOG).await?;
    scene.is_shown("Node gamma is online.").await?;

    // A relay.
    browser.click("nav a[href='#/relays']").await?;
    browser.click("[data-act=add-relay]").await?;
    let port = target::closed_port()?.port();
    browser
        .keys(&format!("fourth{}127.0.0.1:{port}{}", key::TAB, key::ENTER))
        .await?;
    let shown = scene.shown().await?;
    scene.picture("add-relay.png").await?;
    let listen = format!("127.0.0.1:{port}");
    scene.hosts.install(&shown, "fourth", &["--listen", &listen])?;
    let browser = &scene.browser;
    browser.until("the dialog closes by itself", NO_DIALOG).await?;
    let ready =
        "return [...document.querySelectorAll('tr.row.ready')].some(r => r.innerText.includes('fourth'))";
    browser.until("the relay is ready", ready).await?;

    // A link, and its removal.
    browser.click("nav a[href='#/links']").await?;
    browser.click("[data-act=add-link]").await?;
    let listen = target::closed_port()?;
    let fill = format!(
        "const set = (name, value) => {{ document.querySelector('#field-' + name).value = value; }};
         set('name', 'web'); set('from', 'gamma'); set('listen', '{listen}');
         set('to', 'beta'); set('target', '127.0.0.1:80')",
    );
    browser.run(&fill).await?;
    browser.click("dialog button[type=submit]").await?;
    browser.until("the dialog closes by itself", NO_DIALOG).await?;
    scene.is_shown("Link web is ready.").await?;
    browser.click("tr.row:last-child .disclose").await?;
    scene.picture("links.png").await?;
    browser.click("[data-act=remove]").await?;
    browser
        .until(
            "a question first",
            "return document.querySelector('dialog')?.innerText.includes('Remove link web?')",
        )
        .await?;
    browser.click("dialog .button.danger").await?;
    browser
        .until(
            "the link is gone",
            "return document.querySelectorAll('tr.row').length === 1",
        )
        .await?;
    browser.click("nav a[href='#/audit']").await?;
    scene.is_shown("link.remove").await?;
    ensure!(
        scene.complaints().await?.is_empty(),
        "{:?}",
        scene.complaints().await?
    );

    // The control plane is killed: the page says that it is not live, and asks for a login when the
    // new one knows no session.
    let old = scene.pool.kill9(Role::Control)?;
    scene.is_shown("Reconnecting").await?;
    scene.pool.back(Role::Control, old).await?;
    scene.is_shown("Your session has ended").await?;
    scene.log_in(&scene.token).await?;
    scene.is_shown("link.remove").await?;
    browser.click("[data-act=logout]").await?;
    scene.is_shown("Admin token").await?;
    let denied = browser
        .run("return fetch('/v1/whoami').then(a => a.status)")
        .await?;
    ensure!(denied == 401, "{denied}");
    Ok(())
}

/// By keyboard alone, then in the dark, on a phone, and with little motion.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_needs_no_pointer_no_light_and_no_desk() -> Result<()> {
    let scene = Scene::set().await?;
    let browser = &scene.browser;
    scene.log_in(&scene.token).await?;
    scene.is_shown("All is well").await?;
    scene.picture("overview.png").await?;
    // Skip, brand, log out, then the pages in their order.
    scene.tab_to("nav a[href='#/links']").await?;
    browser.keys(key::ENTER).await?;
    browser
        .until(
            "the links",
            "return document.querySelector('h1').innerText.startsWith('Links')",
        )
        .await?;
    scene.tab_to("[data-act=add-link]").await?;
    browser.keys(key::ENTER).await?;
    browser
        .until("the form", "return document.activeElement.id === 'field-name'")
        .await?;
    // The focus stays in the dialog, all around it and back.
    for _ in 0..12 {
        browser.keys(key::TAB).await?;
        let inside =
            "const a = document.activeElement; return a === document.body || a.closest('dialog') !== null";
        ensure!(browser.run(inside).await? == true, "the focus left the dialog");
    }
    browser.keys(key::ESCAPE).await?;
    browser.until("Escape closes it", NO_DIALOG).await?;
    let back = "return document.activeElement.dataset.act === 'add-link'";
    ensure!(browser.run(back).await? == true, "the focus is not back");
    scene.tab_to("button.disclose").await?;
    browser.keys(key::ENTER).await?;
    browser
        .until(
            "details",
            "return document.activeElement.getAttribute('aria-expanded') === 'true'",
        )
        .await?;
    browser.keys(&format!("{}{}", key::SHIFT, key::TAB)).await?;
    ensure!(browser.run(back).await? == true, "Shift and Tab go back");
    // Every control has a name, every field a label, and headings begin with one of the first rank.
    let nameless = "return [...document.querySelectorAll('button, a, input, select')]
        .filter(e => !(e.innerText || e.getAttribute('aria-label') || e.labels?.length)).map(e => e.outerHTML)";
    ensure!(
        browser.run(nameless).await? == json!([]),
        "{}",
        browser.run(nameless).await?
    );

    let ground = "return getComputedStyle(document.body).backgroundColor";
    let light = browser.run(ground).await?;
    browser
        .prefer(&[
            ("prefers-color-scheme", "dark"),
            ("prefers-reduced-motion", "reduce"),
        ])
        .await?;
    let dark = browser.run(ground).await?;
    ensure!(light != dark, "{light}");
    for page in ["overview", "relays", "nodes", "links", "audit"] {
        browser.resize(1280, 800, false).await?;
        browser.run(&format!("location.hash = '#/{page}'")).await?;
        let here = format!("return document.querySelector('nav a[aria-current]').hash === '#/{page}'");
        browser.until(page, &here).await?;
        ensure!(
            browser.run(CONTRAST).await? == json!([]),
            "{page}: {}",
            browser.run(CONTRAST).await?
        );
        scene.picture(&format!("dark-{page}.png")).await?;
        browser.resize(360, 740, true).await?;
        let wide = "const e = document.documentElement; return e.scrollWidth <= 360 ? [] :
            [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > 361).map(e => e.className || e.tagName).slice(0, 9)";
        ensure!(
            browser.run(wide).await? == json!([]),
            "{page} is too wide: {}",
            browser.run(wide).await?
        );
        scene.picture(&format!("phone-{page}.png")).await?;
    }
    browser.prefer(&[("prefers-color-scheme", "light")]).await?;
    ensure!(
        browser.run(CONTRAST).await? == json!([]),
        "{}",
        browser.run(CONTRAST).await?
    );
    scene.picture("phone-light.png").await?;
    ensure!(
        scene.complaints().await?.is_empty(),
        "{:?}",
        scene.complaints().await?
    );
    Ok(())
}

/// Texts whose contrast with what they stand on is below 4.5 (WCAG 2.2, 1.4.3); large ones 3.
const CONTRAST: &str = r#"
const channels = text => (text.match(/[\d.]+/g) ?? []).map(Number);
const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
const ground = e => {
  for (; e; e = e.parentElement) { const c = channels(getComputedStyle(e).backgroundColor); if (c.length === 3 || c[3] === 1) return c; }
  return [255, 255, 255];
};
const bad = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.nodeValue.trim() !== '');
  if (!own || e.getClientRects().length === 0 || e.closest('.hidden, .skip, noscript, :disabled')) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(channels(style.color)), light(ground(e))].sort((x, y) => y - x);
  const least = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
  const contrast = (a + 0.05) / (b + 0.05);
  if (contrast < least) bad.push(`${e.tagName}.${e.className}: ${contrast.toFixed(2)} ${e.textContent.slice(0, 30)}`);
}
return bad;
"#;

/// What members and other sites could try: markup in everything that they report, scripts and
/// styles that the policy bars, requests of another origin, changes by a `read` session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_console_is_not_a_way_in() -> Result<()> {
    let scene = Scene::set().await?;
    let browser = &scene.browser;
    let issued = scene
        .pool
        .rest()?
        .post("/v1/tokens", &json!({"name": "reader", "scopes": ["read"]}))
        .await?;
    scene
        .log_in(issued["secret"].as_str().context("no secret")?)
        .await?;
    scene.is_shown("read only").await?;

    // Every text of every object is markup now; nothing of it runs, all of it is to be read.
    browser
        .run(&format!("window.hostile = {}", json!(HOSTILE)))
        .await?;
    for page in ["overview", "relays", "nodes", "links"] {
        browser.run(&format!("location.hash = '#/{page}'")).await?;
        browser.run(POISON).await?;
        browser
            .until(
                "the text as it is",
                "return document.body.innerText.includes('onerror=')",
            )
            .await?;
        let made = "return document.querySelectorAll('img:not([src=\"/console/icon.svg\"]), main script, iframe').length + (window.owned ?? 0)";
        ensure!(browser.run(made).await? == 0, "{page}: markup was made");
    }
    ensure!(
        scene.complaints().await?.is_empty(),
        "{:?}",
        scene.complaints().await?
    );

    // The policy: no inline script, no inline style, no markup from text, no other host, no frame.
    let barred = browser
        .run(
            "const tried = {};
             const script = document.createElement('script');
             try { script.text = 'window.owned = 1'; document.body.append(script); } catch { tried.types = true; }
             try { document.body.insertAdjacentHTML('beforeend', '<b>x</b>'); } catch { tried.markup = true; }
             const style = document.createElement('style');
             style.textContent = 'body { background: rgb(1, 2, 3) !important }';
             document.head.append(style);
             tried.style = getComputedStyle(document.body).backgroundColor !== 'rgb(1, 2, 3)';
             tried.script = window.owned === undefined;
             return fetch('https://127.0.0.1:1/').catch(() => { tried.host = true; }).then(() => tried);",
        )
        .await?;
    for what in ["types", "markup", "style", "script", "host"] {
        ensure!(barred[what] == true, "{what}: {barred}");
    }

    // A `read` session changes nothing, whatever the page sends.
    ensure!(
        browser
            .run("return document.querySelector('[data-act^=add], [data-act=remove]') === null")
            .await?
            == true
    );
    let change = "return fetch('/v1/nodes', { method: 'POST', headers: { 'content-type': 'application/json' }, body: '{\"name\":\"evil\"}' })
        .then(answer => answer.json()).then(body => body.error.code)";
    ensure!(browser.run(change).await? == "FORBIDDEN");

    // Another site: a page of another origin of this host, which SameSite alone lets through.
    let evil = evil_site().await?;
    browser.open(&evil).await?;
    let url = scene.pool.file()?.control.url;
    let attack = format!(
        "const get = path => fetch('{url}' + path, {{ credentials: 'include' }}).then(a => a.text(), () => 'barred');
         const form = fetch('{url}/v1/session', {{ method: 'POST', mode: 'no-cors', credentials: 'include', body: '{{\"token\":\"x\"}}' }}).then(a => a.type, () => 'barred');
         return Promise.all([get('/v1/relays'), get('/'), form])",
    );
    let got = browser.run(&attack).await?;
    ensure!(
        got[0] == "barred" && got[1] == "barred",
        "another site reads: {got}"
    );
    ensure!(
        ["opaque", "barred"].contains(&got[2].as_str().unwrap_or_default()),
        "{got}"
    );
    let framed = format!(
        "const frame = document.createElement('iframe'); frame.src = '{url}'; document.body.append(frame);
         return new Promise(done => {{ frame.onload = () => done(frame.contentDocument === null ? 'barred' : 'open'); }})",
    );
    ensure!(browser.run(&framed).await? == "barred");
    let complaints = scene.browser.complaints().await?.join("\n");
    ensure!(
        complaints.contains("frame-ancestors") || complaints.contains("X-Frame-Options"),
        "{complaints}"
    );
    Ok(())
}

const HOSTILE: &str = "<img src=x onerror=\"window.owned=1\"><script>window.owned=1</script>";

/// Replaces every text of every object that the page holds, except what tells objects apart.
const POISON: &str = "
const poison = (value, name) => {
  if (typeof value === 'string') return ['id', 'state', 'kind', 'severity'].includes(name) || /_at$|_after$|^last_seen$/.test(name) ? value : window.hostile;
  if (Array.isArray(value)) return value.map(item => poison(item, name));
  if (value && typeof value === 'object') return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, poison(item, key)]));
  return value;
};
return import('/console/live.js').then(({ store }) => {
  for (const kind of Object.values(store.kinds)) for (const [id, value] of kind) {
    kind.set(id, poison(value, ''));
  }
  store.status = { ...store.status, trust_domain: window.hostile, version: window.hostile, advertised: window.hostile };
  store.stop();
  for (const id of store.kinds.link.keys()) {
    const link = store.kinds.link.get(id);
    link.waiting_for = [window.hostile];
    store.kinds.warning.set('x', { place: 0, code: window.hostile, severity: 'critical', kind: 'link', id, name: window.hostile, message: window.hostile, action: window.hostile });
    document.querySelectorAll('button.disclose[aria-expanded=false]').forEach(button => button.click());
  }
  store.tell();
});";

/// A site of its own on this host, at another port: an empty page.
async fn evil_site() -> Result<String> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            let _ = stream.read(&mut head).await;
            let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 31\r\nconnection: close\r\n\r\n<!doctype html><title>x</title>";
            let _ = stream.write_all(page.as_bytes()).await;
        }
    });
    Ok(url)
}
