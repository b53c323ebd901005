// What Go's own flag package makes of podmon's command line, as test data:
//
//	go run tests/arguments/oracle.go > tests/arguments/go.jsonl
//
// The first line is the usage, every other line one command line and its outcome.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"math/rand"
	"os"
)

type outcome struct {
	Args   []string       `json:"args"`
	Error  string         `json:"error,omitempty"`
	Help   bool           `json:"help,omitempty"`
	Given  map[string]any `json:"given,omitempty"`
	Behind []string       `json:"behind,omitempty"`
}

func flags() *flag.FlagSet {
	set := flag.NewFlagSet("podmon", flag.ContinueOnError)
	set.Int("arrayConnectivityPollRate", 15, "MEANING")
	set.Int("arrayConnectivityConnectionLossThreshold", 3, "MEANING")
	set.String("csisock", "", "MEANING")
	set.Bool("leaderelection", true, "MEANING")
	set.String("kubeconfig", "", "MEANING")
	set.String("labelkey", "podmon.dellemc.com/driver", "MEANING")
	set.String("labelvalue", "csi-vxflexos", "MEANING")
	set.String("mode", "controller", "MEANING")
	set.Bool("skipArrayConnectionValidation", false, "MEANING")
	set.String("driverPath", "csi-vxflexos.dellemc.com", "MEANING")
	set.String("driver-config-params", "resources/driver-config-params.yaml", "MEANING")
	set.String("driverPodLabelKey", "driver.dellemc.com", "MEANING")
	set.String("driverPodLabelValue", "dell-storage", "MEANING")
	set.Bool("ignoreVolumelessPods", false, "MEANING")
	set.Bool("detectOnly", false, "MEANING")
	set.Bool("outOfServiceRelease", false, "MEANING")
	set.String("kubeletRoot", "/var/lib/kubelet", "MEANING")
	set.Bool("lazyUnmount", false, "MEANING")
	set.Bool("stopZombies", false, "MEANING")
	set.Bool("pause", false, "MEANING")
	set.String("stormGuard", "50%", "MEANING")
	return set
}

func main() {
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)

	set := flags()
	var usage bytes.Buffer
	set.SetOutput(&usage)
	set.Usage()
	out.Encode(usage.String())

	for _, args := range commandLines() {
		set := flags()
		set.SetOutput(&bytes.Buffer{})
		result := outcome{Args: args, Given: map[string]any{}}
		err := set.Parse(args)
		switch {
		case errors.Is(err, flag.ErrHelp):
			result.Help = true
		case err != nil:
			result.Error = err.Error()
		default:
			set.Visit(func(f *flag.Flag) { result.Given[f.Name] = f.Value.(flag.Getter).Get() })
			result.Behind = set.Args()
		}
		if err != nil {
			result.Given = nil
		}
		out.Encode(result)
	}
}

func commandLines() [][]string {
	names := []string{
		"arrayConnectivityPollRate", "arrayConnectivityConnectionLossThreshold", "csisock", "leaderelection",
		"kubeconfig", "labelkey", "labelvalue", "mode", "skipArrayConnectionValidation", "driverPath",
		"driver-config-params", "driverPodLabelKey", "driverPodLabelValue", "ignoreVolumelessPods",
	}
	values := []string{
		"", "1", "0", "t", "F", "true", "TRUE", "True", "tRUE", "false", "yes", "0x10", "1_000", "0b101", "0o17", "017",
		"08", "_1", "1_", "1__0", "0x_f", "0_7", "-5", "+5", "--5", " 5", "5s", "9223372036854775807",
		"9223372036854775808", "-9223372036854775808", "-9223372036854775809", "99999999999999999999x", "node",
		"a=b", "=", "-", "--", "-x", "quo\"te", "back\\slash", "tab\tnew\nline", "grün", "\u200b", "\x7f", "🦀",
	}
	var lines [][]string
	for _, name := range names {
		for _, dash := range []string{"-", "--"} {
			lines = append(lines, []string{dash + name}, []string{dash + name + "="})
		}
	}
	for _, value := range values {
		for _, name := range []string{"arrayConnectivityPollRate", "leaderelection", "mode"} {
			lines = append(lines, []string{"-" + name + "=" + value}, []string{"--" + name, value, "--labelkey=x"})
		}
	}
	odd := []string{
		"", "-", "--", "---", "---mode", "-=", "--=", "-=x", "--=x", "-h", "--help", "-help=x", "-h=", "-unknown",
		"--unknown=5", "-labelKey=x", "-MODE=node", "-mod", "-modes=x", "positional", "—mode=node", "-ü",
	}
	for _, word := range odd {
		lines = append(lines, []string{word}, []string{"-mode=node", word, "--labelkey=x"}, []string{"-leaderelection", word})
	}
	fitting := map[string][]string{
		"arrayConnectivityPollRate":                {"5", "0x10", "1_000"},
		"arrayConnectivityConnectionLossThreshold": {"1", "-3", "0b11"},
		"leaderelection":                           {"true", "false", "T"},
		"skipArrayConnectionValidation":            {"0", "TRUE", "False"},
		"ignoreVolumelessPods":                     {"f", "t", "1"},
	}
	random := rand.New(rand.NewSource(1))
	for range 300 {
		var line []string
		for range 1 + random.Intn(4) {
			name, value := names[random.Intn(len(names))], values[random.Intn(len(values))]
			if fit := fitting[name]; fit != nil && random.Intn(3) > 0 {
				value = fit[random.Intn(len(fit))]
			}
			dash := []string{"-", "--"}[random.Intn(2)]
			switch random.Intn(8) {
			case 0:
				line = append(line, dash+name)
			case 1:
				line = append(line, odd[random.Intn(len(odd))])
			case 2, 3:
				line = append(line, dash+name, value)
			default:
				line = append(line, dash+name+"="+value)
			}
		}
		lines = append(lines, line)
	}
	return lines
}
