//! `cargo xtask deb`: the Debian package, whether it installs on a clean system, and whether its
//! units run under systemd.

mod boot;
mod machine;

use crate::{source, steps};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `cargo xtask deb`.
#[derive(Debug, clap::Args)]
pub(crate) struct DebArguments {
    /// Cargo profile of the binary in it.
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
    /// A package that is there already: it is not built.
    #[arg(long, value_name = "FILE")]
    package: Option<PathBuf>,
    /// Installs it on a fresh Debian root (debootstrap; needs root), upgrades and removes it there.
    #[arg(long)]
    check: bool,
    /// Boots two machines from such a root (systemd-nspawn; needs root): a pool by the guide's steps,
    /// restarts, kills, an upgrade, a reboot and a purge under a real systemd.
    #[arg(long)]
    boot: bool,
}

/// The release that the package's metadata was written for.
const CARGO_DEB_VERSION: &str = "3.8.0";
/// The oldest Debian that the package is for.
const SUITE: &str = "bookworm";

/// Builds the package; with `--check`, installs it.
pub(crate) fn run(arguments: &DebArguments) -> Result<()> {
    std::env::set_current_dir(source::root()?)?;
    let package = match &arguments.package {
        Some(package) => package.clone(),
        None => build(&arguments.profile)?,
    };
    println!("deb: {}", package.display());
    if !arguments.check && !arguments.boot {
        return Ok(());
    }
    let folder = target().join("debian");
    let clean = folder.join("root");
    bootstrap(&clean)?;
    if arguments.check {
        let root = folder.join("root-check");
        copy(&clean, &root)?;
        check(&package, &root)?;
    }
    if arguments.boot {
        boot::run(&package, &clean)?;
    }
    for root in ["root", "root-check", "root-one", "root-two"] {
        remove(&folder.join(root))?;
    }
    Ok(())
}

fn build(profile: &str) -> Result<PathBuf> {
    if !steps::answers("cargo", &["deb", "--version"]) {
        // A debug build is there in a third of the time, and its one run is short.
        let mut install = Command::new("cargo");
        install.args(["install", "--debug", "--locked", "--quiet"]);
        install.args(["--version", CARGO_DEB_VERSION, "cargo-deb"]);
        steps::run_command(&mut install)?;
    }
    steps::run("cargo", &["build", "-p", "fairlead", "--profile", profile])?;
    let folder = target().join(profile);
    extras(&folder.join("fairlead"), &folder.join("extra"))?;
    let package = target().join("debian/fairlead.deb");
    let mut build = Command::new("cargo");
    build.args([
        "deb",
        "--no-build",
        "-p",
        "fairlead",
        "--profile",
        profile,
        "--output",
    ]);
    steps::run_command(build.arg(&package))?;
    Ok(package)
}

/// Man pages and completions, as the binary writes them.
fn extras(binary: &Path, folder: &Path) -> Result<()> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    let (completions, pages) = (folder.join("completions"), folder.join("man"));
    std::fs::create_dir_all(&completions)?;
    std::fs::create_dir_all(&pages)?;
    for (shell, name) in [
        ("bash", "fairlead"),
        ("zsh", "_fairlead"),
        ("fish", "fairlead.fish"),
    ] {
        let output = Command::new(binary).args(["completions", shell]).output()?;
        ensure!(output.status.success(), "completions {shell}: {}", output.status);
        std::fs::write(completions.join(name), output.stdout)?;
    }
    let man = Command::new(binary).args(["man", "--dir"]).arg(&pages).output()?;
    ensure!(
        man.status.success(),
        "man: {}",
        String::from_utf8_lossy(&man.stderr)
    );
    // As Debian has them: at the best ratio, and without a time that would differ from build to build.
    let mut gzip = Command::new("gzip");
    gzip.args(["-9n", "--"]);
    for page in std::fs::read_dir(&pages)? {
        gzip.arg(page?.path());
    }
    steps::run_command(&mut gzip)
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Makes a clean root of the suite, able to boot.
fn bootstrap(root: &Path) -> Result<()> {
    remove(root)?;
    std::fs::create_dir_all(root)?;
    let include = "--include=systemd,systemd-sysv,dbus,libgcc-s1";
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", include, SUITE]);
    steps::run_command(debootstrap.arg(root))
        .context("debootstrap, of Debian's package of that name, as root")
}

/// Copies a root, owners and modes included.
fn copy(from: &Path, to: &Path) -> Result<()> {
    remove(to)?;
    let mut copy = Command::new("cp");
    steps::run_command(copy.args(["--archive", "--reflink=auto", "--"]).arg(from).arg(to))
}

fn remove(root: &Path) -> Result<()> {
    if root.exists() {
        std::fs::remove_dir_all(root).with_context(|| format!("{}", root.display()))?;
    }
    Ok(())
}

/// Installs, upgrades and removes the package on a clean root.
fn check(package: &Path, root: &Path) -> Result<()> {
    std::fs::copy(package, root.join("fairlead.deb"))?;
    inside(root, &["dpkg", "-i", "/fairlead.deb"])?;
    let version = inside(root, &["fairlead", "--version"])?;
    let users = inside(
        root,
        &[
            "getent",
            "passwd",
            "fairlead-control",
            "fairlead-relay",
            "fairlead-node",
        ],
    )?;
    ensure!(users.lines().count() == 3, "users: {users}");
    ensure!(
        inside(root, &["stat", "-c", "%U %a", "/var/lib/fairlead"])?.trim() == "root 755",
        "the parent of the state folders"
    );
    for unit in ["control", "relay", "node"] {
        let unit = format!("/usr/lib/systemd/system/fairlead-{unit}.service");
        let said = with_proc(root, &["systemd-analyze", "verify", "--man=no", &unit])?;
        ensure!(said.is_empty(), "{unit}: {said}");
    }
    // What the operator changed outlives an upgrade; what the package changes does not ask.
    let settings = root.join("etc/fairlead/node.toml");
    let changed = std::fs::read_to_string(&settings)? + "# mine\n";
    std::fs::write(&settings, &changed)?;
    std::fs::write(root.join("var/lib/fairlead/kept"), "key")?;
    inside(root, &["dpkg", "-i", "--force-confold", "/fairlead.deb"])?;
    ensure!(
        std::fs::read_to_string(&settings)? == changed,
        "an upgrade changed settings"
    );
    inside(root, &["dpkg", "--purge", "fairlead"])?;
    ensure!(
        !root.join("usr/bin/fairlead").exists() && !settings.exists(),
        "a purge left files"
    );
    ensure!(
        root.join("var/lib/fairlead/kept").exists(),
        "a purge removed keys"
    );
    println!(
        "deb: {} installs, upgrades and is removed on a clean {SUITE}",
        version.trim()
    );
    Ok(())
}

/// Runs a command in the root, as an image builder does: without /proc. Everything that it said.
fn inside(root: &Path, command: &[&str]) -> Result<String> {
    spoken(Command::new("chroot").arg(root).args(command))
}

/// The same with /proc, in a mount namespace of its own.
fn with_proc(root: &Path, command: &[&str]) -> Result<String> {
    let script = "mount -t proc proc \"$0/proc\" && exec chroot \"$0\" \"$@\"";
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--", "sh", "-c", script])
        .arg(root)
        .args(command);
    spoken(&mut unshare)
}

/// Runs a command with what a clean root has; everything that it said.
fn spoken(command: &mut Command) -> Result<String> {
    let output = command
        .env("LC_ALL", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if !output.status.success() {
        bail!("{command:?}: {}: {said}", output.status);
    }
    Ok(said)
}
