//! What the Go podmon gets wrong, by number, as far as one evacuation is concerned.

use podmon::cluster::survey::Problem;

use crate::bench::{A, B, Bench, seconds};

#[test]
fn s6_a_queued_cleanup_does_not_act_on_the_replacement() {
    let mut bench = Bench::failed_node();
    bench.close();
    bench.log.clear();
    // Many changes come in, one after another; P' runs elsewhere.
    bench.cluster.run("db-0", B, &["pv1"]);
    for _ in 0..20 {
        bench.changed();
        bench.pass(seconds(1));
    }
    bench.untouched();
}

#[test]
fn s11_a_volume_of_another_driver_is_not_touched() {
    let mut bench = Bench::failed_node();
    let uid = bench.cluster.pods.keys().next().cloned().expect("the pod");
    bench.cluster.object_to(
        &uid,
        Problem::ForeignDriver {
            volume: "pv9".into(),
            driver: "csi.other.com".into(),
        },
    );
    bench.pass(seconds(120));
    bench.untouched();
    assert_eq!(bench.events().len(), 1, "{:?}", bench.events());
}

/// Four volumes, each fence slow to succeed: it is finished all the same.
#[test]
fn s13_a_half_finished_cleanup_is_finished() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2", "pv3", "pv4"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster.run("db-0", A, &["pv1", "pv2", "pv3", "pv4"]);
        cluster.lose_node(A);
    });
    bench.until("fence");
    for _ in 0..3 {
        let fence = bench.take("fence");
        bench.now = bench.now + seconds(10);
        bench.lose(&fence);
    }
    bench.close();
    assert_eq!(bench.count("delete attachment"), 4);
}

#[test]
fn s14_foreign_taints_are_kept() {
    let mut bench = Bench::failed_node();
    let foreign = podmon::taint::Taint {
        key: "example.com/maintenance".into(),
        value: Some("x".into()),
        effect: "NoExecute".into(),
        time_added: Some("2026-01-01T00:00:00Z".into()),
    };
    bench.until("patch");
    // Between our read and our patch another writer adds its own: the patch is refused, and computed anew.
    let added = foreign.clone();
    bench.cluster.edit_node(A, |node| node.taints.push(added));
    bench.close();
    assert_eq!(
        bench.count("open db-0-3 gone  +taint refused"),
        1,
        "{:?}",
        bench.log
    );
    assert!(bench.cluster.tainted(A) && bench.cluster.node(A).taints.contains(&foreign));
}

#[test]
fn s21_no_attachment_goes_while_the_pod_is_there() {
    let mut bench = Bench::failed_node();
    bench.until("delete pod");
    for _ in 0..5 {
        let delete = bench.take("delete pod");
        bench.lose(&delete);
        assert_eq!(bench.count("delete attachment"), 0);
        bench.until("delete pod");
    }
    bench.close();
}

#[test]
fn l2_an_abort_is_tried_again_by_itself() {
    let mut bench = Bench::failed_node();
    bench.sight = podmon::controller::step::Sight::Seen {
        connected: false,
        io: true,
    };
    bench.pass(seconds(20));
    bench.untouched();
    bench.sight = podmon::controller::step::Sight::Seen {
        connected: false,
        io: false,
    };
    let from = bench.now;
    bench.until("fence");
    assert!(bench.now - from <= seconds(10), "{:?}", bench.now - from);
}

/// L3: one hung volume delays no other group.
#[test]
fn l3_a_hung_volume_delays_no_other_group() {
    let mut bench = Bench::new(|cluster| {
        ["pv1", "pv2"]
            .iter()
            .for_each(|volume| cluster.add_volume(volume));
        cluster.run("db-0", A, &["pv1"]);
        cluster.run("db-1", A, &["pv2"]);
        cluster.lose_node(A);
    });
    bench.until("fence");
    bench.take("fence");
    bench.go("the other pod's release", |bench| {
        bench.count("delete attachment") == 1
    });
    assert!(bench.now - podmon::clock::Moment::since_boot(seconds(1000)) < seconds(5));
}

#[test]
fn l16_an_error_does_not_stop_the_evacuation() {
    let mut bench = Bench::failed_node();
    for _ in 0..5 {
        bench.until("survey");
        let survey = bench.take("survey");
        bench.lose(&survey);
    }
    bench.close();
}
