package otlp

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"

	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"turnstone.dev/turnstone"
)

// Write writes a trace as OTLP/JSON: one message on each line, as the file exporter of the
// OpenTelemetry Collector does.
func Write(ctx context.Context, w io.Writer, read Read) error {
	var m ptrace.JSONMarshaler
	return Convert(ctx, read, func(t ptrace.Traces) error {
		b, err := m.MarshalTraces(t)
		if err != nil {
			return turnstone.NewError("otlp.write", turnstone.KindInternal, "", err)
		}
		_, err = w.Write(append(b, '\n'))
		return err
	})
}

// The standard variables with an endpoint: for all signals, and for traces.
const (
	varAll    = "OTEL_EXPORTER_OTLP_ENDPOINT"
	varTraces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
)

// Send sends a trace to the collector at endpoint, a URL; without a path, /v1/traces is added. An
// empty endpoint is that of the standard variables OTEL_EXPORTER_OTLP_*, which also set headers,
// certificates, compression and the time limit. The error is of kind Invalid if the endpoint is no
// URL, or if it is empty and no variable has one.
func Send(ctx context.Context, endpoint string, read Read) error {
	var opts []otlptracehttp.Option
	if endpoint != "" {
		u, err := url.Parse(endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return turnstone.Errorf("otlp.send", turnstone.KindInvalid,
				fmt.Sprintf("%.200q", endpoint), "is not a URL of a collector").
				WithHint("write http://HOST:4318 or https://HOST/v1/traces")
		}
		if u.Path == "" || u.Path == "/" {
			u.Path = "/v1/traces"
		}
		opts = append(opts, otlptracehttp.WithEndpointURL(u.String()))
	} else if os.Getenv(varTraces) == "" && os.Getenv(varAll) == "" {
		// The client would send to this host, where nobody has said that a collector is.
		return turnstone.Errorf("otlp.send", turnstone.KindInvalid, "the environment",
			"has neither %s nor %s", varAll, varTraces).
			WithHint("set " + varAll + "=http://HOST:4318, or name the collector with --otlp URL")
	}
	client := otlptracehttp.NewClient(opts...)
	fail := func(err error) error {
		return turnstone.Classify("otlp.send", turnstone.KindUnavailable, "the collector", err, "").
			WithHint("check that it takes OTLP over HTTP, usually on port 4318")
	}
	if err := client.Start(ctx); err != nil {
		return fail(err)
	}
	var m ptrace.ProtoMarshaler
	err := Convert(ctx, read, func(t ptrace.Traces) error {
		b, err := m.MarshalTraces(t)
		if err != nil {
			return turnstone.NewError("otlp.send", turnstone.KindInternal, "", err)
		}
		var req collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(b, &req); err != nil {
			return turnstone.NewError("otlp.send", turnstone.KindInternal, "", err)
		}
		if err := client.UploadTraces(ctx, req.GetResourceSpans()); err != nil {
			return fail(err)
		}
		return nil
	})
	if stop := client.Stop(context.WithoutCancel(ctx)); err == nil && stop != nil {
		err = fail(stop)
	}
	return err
}
