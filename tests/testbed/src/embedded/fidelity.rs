//! What both API servers, ours and the real one, must do alike: one list of small checks that only need a client.
//!
//! Give them an API server on which no controller, scheduler or kubelet runs (one with the ServiceAccount admission plugin
//! disabled, or whose default namespace has its ServiceAccount): they assert on versions and would race with those.

mod deleting;
mod patching;
mod reading;
mod session;
mod watching;
mod writing;

use futures::future::BoxFuture;

pub use session::{Checked, Session};

/// One behaviour of the API.
pub struct Check {
    pub name: &'static str,
    run: fn(Session) -> BoxFuture<'static, Checked>,
}

impl Check {
    /// Runs the check; `prefix` makes the names of its objects its own. The error says what differed.
    pub async fn run(&self, client: kube::Client, prefix: &str) -> Checked {
        let prefix = format!("{prefix}-{}", self.name.replace('_', "-"));
        (self.run)(Session::new(client, prefix)).await
    }
}

macro_rules! checks {
    ($($module:ident: $($name:ident),+ $(,)?;)+) => {
        vec![$($(Check {
            name: stringify!($name),
            run: |session| Box::pin($module::$name(session)),
        }),+),+]
    };
}

/// The list.
pub fn all() -> Vec<Check> {
    checks! {
        writing: create_and_read_back, create_twice, create_with_version, create_another_kind, create_in_no_namespace,
            generated_names, replace_stale, replace_without_version, replace_missing, replace_another_uid,
            replace_another_name, lease_versions, no_change_no_version, taint_rules, annotation_limit, pod_spec_is_fixed,
            attachment_spec_is_fixed, csinode_id_is_fixed, pod_defaults, volume_defaults, statefulset_generation, node_starts_tainted,
            bind_once, events_in_two_groups, event_namespace, event_rules, new_lease_by_put;
        patching: merge_patch, merge_patch_stale, merge_patch_uid, merge_patch_name, merge_patch_missing,
            strategic_conditions, strategic_taints_whole, strategic_finalizers, json_patch, json_patch_failed_test,
            json_patch_bad_path, unknown_patch_type, status_apart, spec_apart, status_patch_stale,
            status_patch_takes_annotations, attachment_status_keeps_metadata, empty_lists_vanish;
        deleting: delete_missing, delete_node, delete_other_uid, delete_other_version, delete_right_uid, pod_graceful,
            pod_shorter_grace, pod_forced, pod_unscheduled, pod_finished, pod_finalizer, attachment_finalizer,
            no_finalizer_after_delete, delete_then_same_name, delete_pod_both_preconditions;
        reading: read_missing, unknown_resource, list_by_label, list_by_field, field_not_supported, bad_label_selector,
            list_in_pages, page_is_a_snapshot, bad_continue, list_at_version, list_is_ordered;
        watching: watch_from_version, watch_now, watch_selector_edges, watch_deletion, watch_ends, watch_initial_events,
            watch_initial_events_need_match, watch_bad_version, watch_graceful_deletion;
    }
}
