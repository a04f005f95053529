// Package e2e has tests with a whole cluster on this machine: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler and a kubelet, with a containerd that runs every pod by the shim; and etcd, kube-apiserver, the operator
// and a server. `make kube-e2e` runs them; those with a kubelet need root.
package e2e
