// Every process of a Kubernetes in one program, so that it is built once: its first argument says which.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"apiserver": apiserver.NewAPIServerCommand,
	"kubectl":   func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
	"kubelet":   func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"manager":   manager.NewControllerManagerCommand,
	"scheduler": func() *cobra.Command { return scheduler.NewSchedulerCommand() },
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube apiserver|etcd|kubectl|kubelet|manager|scheduler ...")
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = os.Args[1:]
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	command := commands[name]
	if command == nil {
		fmt.Fprintln(os.Stderr, "there is no", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
