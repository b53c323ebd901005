//! Which pods go together, and what keeps a group where it is.

use std::collections::BTreeMap;

use podmon::clock::Moment;
use podmon::cluster::pod::{Owner, Phase};
use podmon::cluster::survey::Problem;
use podmon::controller::group::{Group, groups};
use podmon::controller::refusal::Refusal;
use podmon::domain::PodUid;
use podmon::journal::Cause;

use crate::cluster::{Cluster, handle};

fn cluster(prepare: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut cluster = Cluster::default();
    cluster.add_node("a");
    for volume in ["pv1", "pv2", "pv3"] {
        cluster.add_volume(volume);
    }
    prepare(&mut cluster);
    cluster
}

fn found(cluster: &Cluster) -> Vec<Group> {
    groups(
        &cluster.survey(&"a".into(), Moment::default()),
        false,
        |_| false,
    )
}

fn only(cluster: &Cluster) -> Group {
    let mut all = found(cluster);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

fn uid(cluster: &Cluster, name: &str) -> PodUid {
    let mut pods = cluster.pods.values();
    let pod = pods
        .find(|pod| pod.incarnation.key.name == name)
        .expect("the pod");
    pod.incarnation.uid.clone()
}

#[test]
fn pods_without_a_bond_go_apart() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        c.run("db-1", "a", &["pv2"]);
        c.lose_node("a");
    });
    assert_eq!(found(&cluster).len(), 2);
    assert!(
        found(&cluster)
            .iter()
            .all(|group| group.refusal.is_none() && group.cause == Cause::NodeFailure)
    );
}

#[test]
fn sharers_of_a_volume_go_together_along_the_chain() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        c.run("db-1", "a", &["pv1", "pv2"]);
        c.run("db-2", "a", &["pv2", "pv3"]);
        c.lose_node("a");
    });
    let group = only(&cluster);
    assert_eq!(
        (group.pods.len(), group.volumes.len(), group.refusal),
        (3, 3, None)
    );
}

#[test]
fn two_volumes_behind_one_handle_are_one() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        c.run("db-1", "a", &["pv2"]);
        c.volumes.get_mut(&"pv2".into()).expect("pv2").handle = handle("pv1");
        c.lose_node("a");
    });
    assert_eq!(only(&cluster).pods.len(), 2);
}

#[test]
fn equal_host_affinity_binds_and_none_does_not() {
    let cluster = cluster(|c| {
        for (name, label) in [("db-0", "x"), ("db-1", "x"), ("db-2", "y")] {
            let uid = c.run(name, "a", &[]);
            c.edit_pod(&uid, |pod| {
                pod.affinity = BTreeMap::from([("app".into(), label.into())])
            });
        }
        c.run("db-3", "a", &[]);
        c.lose_node("a");
    });
    let sizes: Vec<usize> = found(&cluster)
        .iter()
        .map(|group| group.pods.len())
        .collect();
    assert_eq!(sizes, [2, 1, 1]);
}

#[test]
fn s12_an_unprotected_sharer_holds_the_group() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        let other = c.run("backup", "a", &["pv1"]);
        c.edit_pod(&other, |pod| pod.protected = false);
        c.lose_node("a");
    });
    let group = only(&cluster);
    assert!(
        matches!(&group.refusal, Some(Refusal::Shared { with, .. }) if with.name == "backup"),
        "{group:?}"
    );
}

#[test]
fn an_unprotected_pod_that_came_to_its_end_shares_nothing() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        let other = c.run("backup", "a", &["pv1"]);
        c.lose_node("a");
        c.edit_pod(&other, |pod| {
            pod.protected = false;
            pod.phase = Phase::Succeeded;
        });
    });
    assert_eq!(only(&cluster).refusal, None);
}

#[test]
fn a_ready_member_holds_the_group() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        let ready = c.run("db-1", "a", &["pv1"]);
        c.lose_node("a");
        c.edit_pod(&ready, |pod| pod.ready = true);
    });
    assert!(
        matches!(only(&cluster).refusal, Some(Refusal::MemberReady(pod)) if pod.name == "db-1")
    );
}

#[test]
fn what_would_come_back_is_refused() {
    let cluster = cluster(|c| {
        let agent = c.run("agent", "a", &["pv1"]);
        c.edit_pod(&agent, |pod| {
            pod.owner = Some(Owner {
                kind: "DaemonSet".into(),
                name: "agent".into(),
            })
        });
        let mirror = c.run("static", "a", &["pv2"]);
        c.edit_pod(&mirror, |pod| pod.mirror = true);
        c.lose_node("a");
    });
    let labels: Vec<&str> = found(&cluster)
        .iter()
        .filter_map(|group| group.refusal.as_ref())
        .map(Refusal::label)
        .collect();
    assert_eq!(labels, ["daemonset", "mirror"]);
}

#[test]
fn s11_s18_a_volume_that_is_unknown_or_foreign_is_no_reason_to_act() {
    for problem in [
        Problem::NoClaim("ns/data".into()),
        Problem::ForeignClaim("ns/data".into()),
        Problem::Unbound("ns/data".into()),
        Problem::NoVolume("pv1".into()),
        Problem::ForeignVolume("pv1".into()),
        Problem::ForeignDriver {
            volume: "pv9".into(),
            driver: "csi.other.com".into(),
        },
        Problem::InTree {
            volume: "pv9".into(),
            kind: "iscsi".into(),
        },
        Problem::Secret {
            volume: "pv1".into(),
            namespace: "ns".into(),
            name: "s".into(),
        },
    ] {
        let cluster = cluster(|c| {
            c.run("db-0", "a", &["pv1"]);
            c.run("db-1", "a", &["pv1"]);
            c.lose_node("a");
            let sharer = uid(c, "db-1");
            c.object_to(&sharer, problem.clone());
        });
        // One member's trouble is the group's.
        let group = only(&cluster);
        assert!(
            matches!(&group.refusal, Some(Refusal::Volume(_, found)) if *found == problem),
            "{group:?}"
        );
    }
}

#[test]
fn s20_without_a_node_id_nothing_is_fenced() {
    let mut cluster = cluster(|c| {
        c.bind("db-0", "a", &["pv1"]);
        c.lose_node("a");
    });
    assert_eq!(only(&cluster).refusal, None);
    cluster.registered.clear();
    assert_eq!(only(&cluster).refusal, Some(Refusal::NoNodeId));
}

#[test]
fn s23_finished_pods_belong_to_no_group() {
    let cluster = cluster(|c| {
        for (name, phase) in [("job-0", Phase::Succeeded), ("job-1", Phase::Failed)] {
            let uid = c.run(name, "a", &["pv1"]);
            c.edit_pod(&uid, |pod| {
                pod.phase = phase;
                pod.ready = false;
            });
        }
        c.lose_node("a");
    });
    assert_eq!(found(&cluster), []);
}

#[test]
fn a_healthy_node_has_no_groups() {
    let cluster = cluster(|c| {
        let uid = c.run("db-0", "a", &["pv1"]);
        c.edit_pod(&uid, |pod| pod.ready = false);
    });
    assert_eq!(found(&cluster), []);
}

#[test]
fn what_is_listed_is_not_begun_again() {
    let cluster = cluster(|c| {
        c.run("db-0", "a", &["pv1"]);
        c.lose_node("a");
    });
    let survey = cluster.survey(&"a".into(), Moment::default());
    assert_eq!(groups(&survey, false, |_| true), []);
}
