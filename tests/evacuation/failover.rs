//! The plain road, from the announcement to the closed journal, and the groups that never take it.

use podmon::controller::refusal::Hold;
use podmon::controller::step::{Sight, Step};
use podmon::journal::{Cause, Phase};

use crate::bench::{A, Bench, seconds};

#[test]
fn plain_failover_in_order() {
    let mut bench = Bench::failed_node();
    bench.close();
    insta::assert_snapshot!(bench.log.join("\n"), @"
    open db-0-3 gone  +taint
    fence pv1 id-a
    forget in use
    event NodeFailure: podmon cleaning pod [db-0-3 a] with force delete
    delete pod db-0-3 Ok(Gone)
    delete attachment va-pv1-a-4
    close
    ");
    assert!(bench.cluster.tainted(A) && !bench.cluster.can_write("pv1", A));
}

#[test]
fn every_volume_is_fenced_before_the_pod_goes() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2", "pv3"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster.run("db-0", A, &["pv1", "pv2", "pv3"]);
        cluster.lose_node(A);
    });
    bench.close();
    let gone = bench.position("delete pod");
    for volume in ["pv1", "pv2", "pv3"] {
        assert!(bench.position(&format!("fence {volume}")) < gone);
        assert!(bench.position(&format!("delete attachment va-{volume}")) > gone);
    }
}

#[test]
fn no_pod_of_a_group_is_announced_alone() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster.run("db-0", A, &["pv1"]);
        cluster.run("db-1", A, &["pv1", "pv2"]);
        cluster.lose_node(A);
    });
    bench.until("fence");
    assert_eq!(
        bench.cluster.journal(A).map(|journal| journal.pods.len()),
        Some(2)
    );
    bench.close();
}

#[test]
fn a_healthy_node_is_left_alone() {
    let mut bench = Bench::new(|cluster| {
        cluster.add_volume("pv1");
        let uid = cluster.run("db-0", A, &["pv1"]);
        cluster.edit_pod(&uid, |pod| pod.ready = false);
    });
    bench.over();
    bench.untouched();
}

#[test]
fn nothing_is_begun_while_held() {
    for hold in [Hold::Paused, Hold::DetectOnly, Hold::Storm, Hold::Powerless] {
        let mut bench = Bench::failed_node();
        bench.rules.hold = Some(hold);
        bench.pass(seconds(120));
        bench.untouched();
    }
}

#[test]
fn what_has_begun_goes_on_while_held() {
    let mut bench = Bench::failed_node();
    bench.until("fence");
    bench.rules.hold = Some(Hold::Paused);
    bench.close();
    assert_eq!(bench.count("delete pod"), 1);
}

#[test]
fn a_veto_is_asked_again_and_told_once() {
    for sight in [
        Sight::Seen {
            connected: true,
            io: false,
        },
        Sight::Seen {
            connected: false,
            io: true,
        },
    ] {
        let mut bench = Bench::failed_node();
        bench.sight = sight;
        bench.pass(seconds(60));
        bench.untouched();
        assert_eq!(bench.events().len(), 1, "{:?}", bench.events());
        // L2: nothing but time makes it look again.
        bench.sight = Sight::Seen {
            connected: false,
            io: false,
        };
        bench.close();
    }
}

#[test]
fn s7_s8_no_answer_is_no_reason_to_act() {
    let mut bench = Bench::failed_node();
    for _ in 0..10 {
        bench.until("ask");
        let ask = bench.take("ask");
        bench.lose(&ask);
    }
    bench.untouched();
    bench.log.retain(|line| !line.starts_with("ask"));
    bench.close();
}

#[test]
fn an_operators_word_lifts_the_veto_by_connection_only() {
    let ready = |bench: &mut Bench| {
        bench.cluster.heal_node(A);
        bench.cluster.edit_node(A, |node| {
            node.taints.push(podmon::taint::Taint {
                key: podmon::taint::OUT_OF_SERVICE.into(),
                value: Some("nodeshutdown".into()),
                effect: "NoExecute".into(),
                time_added: None,
            });
        });
    };
    let mut io = Bench::failed_node();
    ready(&mut io);
    io.sight = Sight::Seen {
        connected: true,
        io: true,
    };
    io.pass(seconds(60));
    io.untouched();
    let mut connected = Bench::failed_node();
    ready(&mut connected);
    connected.sight = Sight::Seen {
        connected: true,
        io: false,
    };
    connected.until("fence");
    assert_eq!(
        connected.cluster.journal(A).map(|journal| journal.why),
        Some(Cause::OutOfService)
    );
}

#[test]
fn s10_the_io_veto_is_asked_for_volume_by_volume() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster
            .volumes
            .get_mut(&"pv2".into())
            .expect("pv2")
            .many_writers = true;
        cluster.run("db-0", A, &["pv1", "pv2"]);
        cluster.lose_node(A);
    });
    bench.until("ask");
    let Step::Ask(question) = bench.take("ask") else {
        panic!()
    };
    assert_eq!((question.exclusive.len(), question.shared.len()), (1, 1));
}

#[test]
fn a_pod_without_volumes_is_deleted_in_the_state_that_was_read() {
    let mut bench = Bench::new(|cluster| {
        cluster.run("web-0", A, &[]);
        cluster.lose_node(A);
    });
    bench.until("delete pod");
    let Step::DeletePod { version, .. } = bench.take("delete pod") else {
        panic!()
    };
    assert!(version.is_some());
}

#[test]
fn a_volumeless_pod_is_ignored_when_told_to() {
    let mut bench = Bench::new(|cluster| {
        cluster.run("web-0", A, &[]);
        cluster.lose_node(A);
    });
    bench.rules.ignore_volumeless = true;
    bench.pass(seconds(60));
    bench.untouched();
}

/// S19: the journal of an array loss stays open until the array sees the node again.
#[test]
fn s19_the_journal_is_not_closed_while_the_array_is_lost() {
    let mut bench = Bench::failed_node();
    bench.cluster.heal_node(A);
    bench.rules.array_lost = true;
    bench.pass(seconds(120));
    assert_eq!(bench.count("delete attachment"), 1);
    assert!(
        bench
            .cluster
            .journal(A)
            .is_some_and(|journal| journal.is_open() && journal.pods.is_empty())
    );
    bench.rules.array_lost = false;
    bench.rules.array_seen = true;
    bench.changed();
    bench.pass(seconds(60));
    assert_eq!(
        bench.cluster.journal(A).map(|journal| journal.phase),
        Some(Phase::Closed)
    );
}
