//! Proves: workers that run, and sleep, answer when asked what they are doing; a worker that does
//! not get to it costs the asker its timeout and no more. How: real workers of both drivers with
//! one server that accepts and sends nothing.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use weir_check::waiting::{CAP, Waiting};
use weir_io::DriverKind;
use weir_proxy::observe::report::ConnectionState;
use weir_proxy::plan::{ListenerPlan, Plan, ServerPlan, UpstreamPlan};
use weir_worker::{Enquiry, Running, Setup, WorkerReport, enquire, start};

const CONNECTIONS: u32 = 5;

fn drivers() -> impl Iterator<Item = DriverKind> {
    let usable = |choice| weir_io::choose(choice).ok().map(|probe| probe.driver);
    [weir_io::IoChoice::Uring, weir_io::IoChoice::Epoll].into_iter().filter_map(usable)
}

fn run(driver: DriverKind, server: &TcpListener) -> Running {
    let address = server.local_addr().unwrap();
    let server = ServerPlan {
        connections_min: CONNECTIONS,
        connections: CONNECTIONS,
        ..ServerPlan::new("server", address)
    };
    let plan = Plan {
        listeners: vec![ListenerPlan::new(([127, 0, 0, 1], 0).into())],
        upstreams: vec![UpstreamPlan {
            name: "app".to_owned(),
            servers: vec![server],
            ..UpstreamPlan::default()
        }],
        ..Plan::default()
    };
    start(&Setup {
        plan: Arc::new(plan),
        workers: 2,
        driver,
        pin: false,
        seed: 1,
        errands: None,
        seals: Vec::new(),
        server_seals: Vec::new(),
        prepared: None,
        board: None,
        complain: |_| {},
    })
    .unwrap()
}

fn ask(running: &Running) -> Vec<Arc<WorkerReport>> {
    let enquiries: Vec<_> = running.views().iter().map(|view| Arc::clone(&view.enquiry)).collect();
    enquire(&enquiries, CAP).into_iter().map(|report| report.expect("an answer")).collect()
}

#[test]
fn sleeping_workers_answer() {
    for driver in drivers() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let running = run(driver, &server);
        let mut waiting = Waiting::begin();
        let reports = loop {
            let reports = ask(&running);
            let connections =
                || reports.iter().flat_map(|report| &report.machines.servers[0].connections);
            if connections().all(|connection| connection.state == ConnectionState::Idle) {
                break reports;
            }
            assert!(waiting.goes_on(), "{driver:?}: {}: {reports:?}", waiting.story());
        };
        let count: usize =
            reports.iter().map(|report| report.machines.servers[0].connections.len()).sum();
        assert_eq!(count, CONNECTIONS as usize);
        let connects: u64 = running.views().iter().map(|view| view.servers[0].connects.get()).sum();
        assert_eq!(connects, u64::from(CONNECTIONS));
        assert!(
            reports.iter().all(|report| !report.driver.is_empty() && report.driver_stats.turns > 0)
        );
        let queues = reports.iter().flat_map(|report| &report.accept_queues);
        assert_eq!(
            queues.filter(|(_, queue)| queue.waiting == 0 && queue.limit > 0).count(),
            2,
            "one for each worker"
        );
        assert!(reports.iter().all(|report| report.cpu_us > 0));
        running.stop();
        running.join().unwrap();
    }
}

#[test]
fn patience_ends() {
    let nobody = [Arc::new(Enquiry::default())];
    assert!(enquire(&nobody, Duration::from_millis(1))[0].is_none());
}
