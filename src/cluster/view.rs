//! Narrow wire types: only the fields that podmon reads. A whole Pod costs fifty times the memory.

/// Makes a wire type stand for a Kubernetes kind in `kube::Api` and in watches.
macro_rules! view {
    ($view:ident of $kind:ty, $scope:ident) => {
        impl kube::Resource for $view {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;
            fn kind(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }
            fn group(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }
            fn version(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }
            fn meta(&self) -> &kube::core::ObjectMeta {
                &self.metadata
            }
            fn meta_mut(&mut self) -> &mut kube::core::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(super) use view;
