//! The cached picture: whatever order changes come in, and whether one by one or all at once.

use podmon::clock::Moment;
use podmon::cluster::node::Node;
use podmon::cluster::pod::Pod;
use podmon::cluster::watch::Change;
use podmon::controller::decide::decide;
use podmon::controller::world::{Observation, World};
use podmon::domain::NodeName;
use proptest::prelude::*;

use crate::cluster::Cluster;

/// What became of one pod or node.
#[derive(Clone, Debug)]
enum Turn {
    Run(u8, u8),
    Unready(u8),
    Unprotect(u8),
    Remove(u8),
    Lose(u8),
    Heal(u8),
}

fn turns() -> impl Strategy<Value = Vec<Turn>> {
    let one = prop_oneof![
        (0..6u8, 0..3u8).prop_map(|(pod, node)| Turn::Run(pod, node)),
        (0..6u8).prop_map(Turn::Unready),
        (0..6u8).prop_map(Turn::Unprotect),
        (0..6u8).prop_map(Turn::Remove),
        (0..3u8).prop_map(Turn::Lose),
        (0..3u8).prop_map(Turn::Heal),
    ];
    proptest::collection::vec(one, 1..30)
}

fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    for node in 0..3 {
        cluster.add_node(&node.to_string());
    }
    cluster
}

/// Carries the turns out and hands over each change that a watch would bring.
fn play(turns: &[Turn], mut tell: impl FnMut(Observation)) -> Cluster {
    let mut cluster = cluster();
    for node in cluster.nodes.values() {
        tell(Observation::Node(Change::Applied(node.clone())));
    }
    for turn in turns {
        let before = cluster.clone();
        let pod = |pod: u8| before.pods.keys().nth(pod.into()).cloned();
        match turn {
            Turn::Run(pod, node) => drop(cluster.run(&format!("p{pod}"), &node.to_string(), &[])),
            Turn::Unready(index) => pod(*index)
                .iter()
                .for_each(|uid| cluster.edit_pod(uid, |pod| pod.ready = false)),
            Turn::Unprotect(index) => pod(*index)
                .iter()
                .for_each(|uid| cluster.edit_pod(uid, |pod| pod.protected = false)),
            Turn::Remove(index) => pod(*index).iter().for_each(|uid| cluster.remove_pod(uid)),
            Turn::Lose(node) => cluster.lose_node(&node.to_string()),
            Turn::Heal(node) => cluster.heal_node(&node.to_string()),
        }
        for (uid, pod) in &cluster.pods {
            if before.pods.get(uid) != Some(pod) {
                tell(Observation::Pod(Change::Applied(pod.clone())));
            }
        }
        for pod in before
            .pods
            .values()
            .filter(|pod| !cluster.pods.contains_key(&pod.incarnation.uid))
        {
            tell(Observation::Pod(Change::Deleted(pod.clone())));
        }
        for (name, node) in &cluster.nodes {
            if before.nodes.get(name) != Some(node) {
                tell(Observation::Node(Change::Applied(node.clone())));
            }
        }
    }
    cluster
}

fn verdicts(world: &World) -> Vec<String> {
    let nodes = (0..3).map(|node| NodeName::from(node.to_string()));
    nodes
        .map(|node| format!("{:?}", decide(world, &node, false)))
        .collect()
}

fn all(cluster: &Cluster) -> World {
    let mut world = World::default();
    let nodes: Vec<Node> = cluster.nodes.values().cloned().collect();
    let pods: Vec<Pod> = cluster.pods.values().cloned().collect();
    world.observe(&Observation::Node(Change::All(nodes)));
    world.observe(&Observation::Pod(Change::All(pods)));
    world
}

proptest! {
    /// A watch that starts anew brings the same picture as one that never broke.
    #[test]
    fn replay_equals_incremental(turns in turns()) {
        let mut world = World::default();
        let cluster = play(&turns, |observation| drop(world.observe(&observation)));
        prop_assert_eq!(verdicts(&world), verdicts(&all(&cluster)));
        // An expired watch: everything once more on top of what is known.
        let pods: Vec<Pod> = cluster.pods.values().cloned().collect();
        world.observe(&Observation::Pod(Change::Stale("gone".into())));
        world.observe(&Observation::Pod(Change::All(pods)));
        prop_assert_eq!(verdicts(&world), verdicts(&all(&cluster)));
    }

    /// Pods and nodes come over watches of their own: which is ahead makes no difference in the end.
    #[test]
    fn order_of_the_watches_does_not_matter(turns in turns(), cut in 0..40usize) {
        let (mut pods, mut nodes) = (Vec::new(), Vec::new());
        let cluster = play(&turns, |observation| match observation {
            Observation::Pod(_) => pods.push(observation),
            observation => nodes.push(observation),
        });
        let expected = verdicts(&all(&cluster));
        let early = cut.min(pods.len());
        for order in [[&pods[..early], &nodes[..], &pods[early..]].concat(), [&nodes[..], &pods[..]].concat(), [&pods[..], &nodes[..]].concat()] {
            let mut world = World::default();
            for observation in &order {
                world.observe(observation);
            }
            prop_assert_eq!(verdicts(&world), expected.clone());
        }
    }

    /// Whoever looks again at a node after each change that names it misses nothing.
    #[test]
    fn a_change_names_every_node_that_it_concerns(turns in turns()) {
        let mut world = World::default();
        let mut known = verdicts(&world);
        let mut missed = Vec::new();
        play(&turns, |observation| {
            let touched = world.observe(&observation);
            let now = verdicts(&world);
            for node in 0..3 {
                if now[node] != known[node] && !touched.contains(&NodeName::from(node.to_string())) {
                    missed.push(format!("{node}: {observation:?}"));
                }
            }
            known = now;
        });
        prop_assert!(missed.is_empty(), "{missed:?}");
    }
}

/// L1: the pod's event may come before the taint that makes it a failure.
#[test]
fn l1_a_node_is_looked_at_when_its_taint_comes_after_the_pod() {
    let mut cluster = cluster();
    let uid = cluster.run("db-0", "0", &[]);
    let mut world = all(&cluster);
    cluster.edit_pod(&uid, |pod| pod.ready = false);
    world.observe(&Observation::Pod(Change::Applied(
        cluster.pods[&uid].clone(),
    )));
    assert!(verdicts(&world)[0].contains("NodeHealthy"));
    cluster.lose_node("0");
    let touched = world.observe(&Observation::Node(Change::Applied(
        cluster.node("0").clone(),
    )));
    assert!(touched.contains(&NodeName::from("0")));
    assert!(verdicts(&world)[0].contains("NodeFailure"));
    assert_eq!(cluster.survey(&"0".into(), Moment::default()).pods.len(), 1);
}
