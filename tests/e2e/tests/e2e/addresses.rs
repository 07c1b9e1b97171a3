//! Listeners on IPv4 and IPv6, targets on TCP, IPv6 and Unix sockets.

use anyhow::{Result, ensure};
use fairlead_testkit::target::Behaviour;
use fairlead_testkit::{Pool, Target, target, verified};
use std::net::SocketAddr;

/// R-NOD-05: both families on both sides, literals with and without brackets where they belong.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_families_and_unix_sockets_work_on_either_side() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("echo.sock");
    let unix = Target::unix_echo(&path).await?;
    let six = Target::start_on("[::1]:0".parse()?, Behaviour::Echo).await?;
    let four = Target::echo().await?;
    let listen_six: SocketAddr = (std::net::Ipv6Addr::LOCALHOST, target::closed_port()?.port()).into();
    let by_name = format!("localhost:{}", four.socket()?.port());
    let pool = Pool::builder()
        .relays(0)
        .link("six", &listen_six.to_string(), six.address())
        .to("unix", unix.address())?
        .to("name", &by_name)?
        .start()
        .await?;
    ensure!(pool.listen("six")?.is_ipv6());
    for link in ["six", "unix", "name"] {
        verified::echo_once(pool.listen(link)?, 3, 200_000).await?;
    }
    ensure!(unix.accepted() == 1 && six.accepted() == 1 && four.accepted() == 1);
    Ok(())
}
