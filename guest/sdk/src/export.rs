//! [`export_policy!`](crate::export_policy): from a type to a policy.

/// Makes a type the policy of its crate.
///
/// - `export_policy!(Heft)`: a [`Policy`](crate::Policy) that places whole graphs.
/// - `export_policy!(RoundRobin, online)`: an [`OnlinePolicy`](crate::OnlinePolicy) that does both.
/// - `export_policy!(Stealing, online_only)`: one that places while graphs run and no other way.
///
/// Built for wasm32 it exports the functions of the contract, keeps one instance, forwards the
/// message of a panic to the host's log, and embeds the contract's version in the section
/// `placewright:sdk`. Built natively it defines `pub fn native() -> Box<dyn NativePolicy>`, a fresh
/// instance of the same policy for hosts and tests. Once per crate.
#[macro_export]
macro_rules! export_policy {
    ($policy:ty) => {
        $crate::export_policy!(@native $policy, whole_graph);
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_whole_graph);
    };
    ($policy:ty, online) => {
        $crate::export_policy!(@native $policy, online);
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_whole_graph, export_online);
    };
    ($policy:ty, online_only) => {
        $crate::export_policy!(@native $policy, online);
        $crate::export_policy!(@wasm $policy, export_lifecycle, export_online);
    };
    (@native $policy:ty, $kind:ident) => {
        /// A fresh instance of this crate's policy, linked natively.
        #[cfg(not(target_arch = "wasm32"))]
        pub fn native() -> ::std::boxed::Box<dyn $crate::native::NativePolicy> {
            $crate::native::$kind::<$policy>(::std::env!("CARGO_PKG_VERSION"))
        }
    };
    (@wasm $policy:ty, $($export:ident),+) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Exports;

            ::std::thread_local! {
                static POLICY: ::std::cell::RefCell<::std::option::Option<$policy>> =
                    const { ::std::cell::RefCell::new(::std::option::Option::None) };
            }

            impl $crate::wasm::Exported for Exports {
                type Policy = $policy;
                const VERSION: &'static str = ::std::env!("CARGO_PKG_VERSION");

                fn with<R>(call: impl ::std::ops::FnOnce(&mut $policy) -> R) -> R {
                    POLICY.with_borrow_mut(|policy| {
                        call(policy.get_or_insert_with(|| {
                            $crate::wasm::forward_panics();
                            ::std::default::Default::default()
                        }))
                    })
                }
            }

            #[unsafe(link_section = "placewright:sdk")]
            #[used]
            static CONTRACT: [u8; $crate::CONTRACT_VERSION.len()] =
                $crate::wasm::CONTRACT_VERSION_BYTES;

            $($crate::wasm::$export!(Exports with_types_in $crate::wasm::bindings::$export);)+
        };
    };
}
