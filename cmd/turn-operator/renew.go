package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"turnstone.dev/turnstone"
	"turnstone.dev/turnstone/internal/filestamp"
	"turnstone.dev/turnstone/internal/remote/hosts"
)

// A renewer keeps the operator's token from ending: when half of its life is over it makes the successor,
// and puts it in place of the old one. A successor that was not stored is stored later: as long as the
// process runs no second one is made for a token. If the process ends in between, the next one makes
// another: the old token is valid until its own end.
type renewer struct {
	current   func() (string, error)
	successor func(ctx context.Context) (old, successor string, err error)
	store     func(ctx context.Context, token string) error
	take      func(token string) error // for this process
	log       *slog.Logger

	old, next string // the last successor, and which token it succeeds
	said      string // the error that was logged last
}

const (
	// renewEvery is the time between two looks at the token.
	renewEvery = time.Minute
	// renewTime bounds a look.
	renewTime = time.Minute
	// toFile is the value of --renew for a token that is in a file.
	toFile = "file"
)

// Start implements manager.Runnable. It runs where the leader is.
func (r *renewer) Start(ctx context.Context) error {
	for t := time.NewTicker(renewEvery); ; {
		r.look(ctx)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// look renews the token if it is time, and logs what keeps it from that when that changes.
func (r *renewer) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	err := r.renew(bounded)
	if ctx.Err() != nil {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.said && err != nil {
		r.log.Warn("the operator's token is not renewed", "error", text, "hint", turnstone.HintOf(err))
	}
	r.said = text
}

func (r *renewer) renew(ctx context.Context) error {
	if is, err := r.current(); err != nil {
		return err
	} else if is != r.old {
		r.next = "" // a person has put another token there
	}
	if r.next == "" {
		var err error
		if r.old, r.next, err = r.successor(ctx); err != nil || r.next == "" {
			return err
		}
	}
	if err := r.store(ctx, r.next); err != nil {
		return err
	}
	if err := r.take(r.next); err != nil {
		return err
	}
	r.log.Info("the operator's token has a successor")
	r.old, r.next = "", ""
	return nil
}

// inSecret stores the token in a Secret, with the right to change this one and no other one.
func inSecret(to client.Client, namespace, name string) func(context.Context, string) error {
	return func(ctx context.Context, token string) error {
		b, err := json.Marshal(map[string]any{"data": map[string]string{
			tokenName: base64.StdEncoding.EncodeToString([]byte(token))}})
		if err != nil {
			return err
		}
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		if err := to.Patch(ctx, s, client.RawPatch(types.MergePatchType, b)); err != nil {
			return turnstone.NewError("operator.renew", turnstone.KindUnavailable, "secret "+namespace+"/"+name, err).
				WithHint("the operator needs the verb patch of this secret")
		}
		return nil
	}
}

// inFile stores the token in a file.
func inFile(path string) func(token string) error {
	return func(token string) error { return filestamp.WriteFile(path, []byte(token+"\n"), 0o600) }
}

// newRenewer returns what the flag --renew asks for; nil: nothing.
func (f *flags) newRenewer(to client.Client, successor func(context.Context) (string, string, error),
	log *slog.Logger) (*renewer, error) {
	r := &renewer{current: func() (string, error) { return hosts.ReadToken(f.TokenFile) }, successor: successor, take: inFile(f.TokenFile), log: log}
	namespace, name, ok := strings.Cut(f.Renew, "/")
	switch {
	case f.Renew == "":
		return nil, nil
	case f.Renew == toFile && f.Secrets == "":
		r.store = func(context.Context, string) error { return nil }
	case ok && namespace != "" && name != "" && !strings.Contains(name, "/"):
		r.store = inSecret(to, namespace, name)
	default:
		return nil, turnstone.Errorf("operator.renew", turnstone.KindInvalid, "--renew "+f.Renew,
			"is not NAMESPACE/NAME of a Secret, or %s with --token-file", toFile)
	}
	return r, nil
}

// tokenEnds is the metric that says when the operator's token ends.
func tokenEnds(ends func() (time.Time, error)) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "turnstone_operator_token_end_timestamp_seconds",
		Help: "When the operator's token ends; 0: it does not say it."}, func() float64 {
		at, err := ends()
		if err != nil || at.IsZero() {
			return 0
		}
		return float64(at.Unix())
	})
}
