// Zipkin's own instrumentation library, Brave, and OpenTelemetry's exporter, sending to two servers at once:
//
//   java -cp JARS Senders.java HTTP SCRIBE HTTP SCRIBE
//
// HTTP is a base address, SCRIBE is HOST:PORT. For each road (library, encoding, transport) one request is traced, and the
// library sends its spans to both servers. Prints a line "ROAD TRACE_ID" for each; fails if a server refuses anything.

import brave.Span;
import brave.Tracing;
import brave.handler.SpanHandler;
import brave.propagation.B3Propagation;
import brave.propagation.TraceContextOrSamplingFlags;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.common.Attributes;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.context.Context;
import io.opentelemetry.exporter.zipkin.ZipkinSpanExporter;
import io.opentelemetry.sdk.resources.Resource;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiFunction;
import zipkin2.reporter.AsyncReporter;
import zipkin2.reporter.BytesMessageSender;
import zipkin2.reporter.Encoding;
import zipkin2.reporter.InMemoryReporterMetrics;
import zipkin2.reporter.SpanBytesEncoder;
import zipkin2.reporter.brave.AsyncZipkinSpanHandler;
import zipkin2.reporter.brave.ZipkinSpanHandler;
import zipkin2.reporter.libthrift.LibthriftSender;
import zipkin2.reporter.okhttp3.OkHttpSender;
import zipkin2.reporter.urlconnection.URLConnectionSender;

class Senders {
    /** The addresses at which a server accepts spans. */
    record Server(String http, String scribe) {}

    /** Makes the sender to which a library hands the bytes of spans. */
    interface Transport {
        BytesMessageSender to(Server server, Encoding encoding);
    }

    /** Counts what was sent and what was refused. */
    static final InMemoryReporterMetrics METRICS = new InMemoryReporterMetrics();

    static BytesMessageSender urlConnection(Server server, Encoding encoding) {
        return URLConnectionSender.newBuilder().endpoint(server.http + path(encoding)).encoding(encoding).build();
    }

    static BytesMessageSender plain(Server server, Encoding encoding) {
        return URLConnectionSender.newBuilder().endpoint(server.http + path(encoding)).encoding(encoding)
            .compressionEnabled(false).build();
    }

    static BytesMessageSender okHttp(Server server, Encoding encoding) {
        return OkHttpSender.newBuilder().endpoint(server.http + path(encoding)).encoding(encoding).build();
    }

    static BytesMessageSender scribe(Server server, Encoding encoding) {
        String[] place = server.scribe.split(":");
        return LibthriftSender.newBuilder().host(place[0]).port(Integer.parseInt(place[1])).build();
    }

    static String path(Encoding encoding) {
        return encoding == Encoding.THRIFT ? "/api/v1/spans" : "/api/v2/spans";
    }

    /** A span handler, and how to flush and close it. */
    record Handler(SpanHandler handler, AutoCloseable end) {}

    /** Brave's own way: its spans, encoded by its reporter. */
    static Handler direct(BytesMessageSender sender) {
        var handler = AsyncZipkinSpanHandler.newBuilder(sender).metrics(METRICS).messageTimeout(0, TimeUnit.SECONDS).build();
        return new Handler(handler, () -> { handler.flush(); handler.close(); });
    }

    /** For encodings without an encoder in Brave's reporter: converts to Zipkin's spans first. */
    static Handler converted(BytesMessageSender sender, SpanBytesEncoder encoder) {
        var reporter = AsyncReporter.builder(sender).metrics(METRICS).messageTimeout(0, TimeUnit.SECONDS).build(encoder);
        return new Handler(ZipkinSpanHandler.create(reporter), () -> { reporter.flush(); reporter.close(); });
    }

    static void brave(String road, boolean wide, List<Server> servers, java.util.function.Function<Server, Handler> handler)
        throws Exception {
        var handlers = servers.stream().map(handler).toList();
        var front = tracing("Front", "10.0.0.1", 80, wide, handlers);
        var store = tracing("Store", "2001:db8::2", 6800, wide, handlers);
        System.out.println(road + " " + request(front, store));
        front.close();
        store.close();
        for (var one : handlers) one.end.close();
    }

    static Tracing tracing(String service, String ip, int port, boolean wide, List<Handler> handlers) {
        var builder = Tracing.newBuilder().localServiceName(service).localIp(ip).localPort(port).traceId128Bit(wide);
        for (var one : handlers) builder.addSpanHandler(one.handler);
        return builder.build();
    }

    /** Traces a request through two services, with everything that a span may have; returns its trace id. */
    static String request(Tracing front, Tracing store) {
        Span server = front.tracer().newTrace().name("Put /objects").kind(Span.Kind.SERVER).start();
        server.remoteIpAndPort("192.0.2.7", 40000);
        server.tag("http.method", "PUT").tag("object", "größe 对象 \"\\\n").tag("empty", "");
        server.annotate("queued");

        Span local = front.tracer().newChild(server.context()).name("checksum").start();
        local.tag("bytes", "4096");
        local.finish();

        Span client = front.tracer().newChild(server.context()).name("write").kind(Span.Kind.CLIENT).start();
        client.remoteServiceName("Store");
        client.remoteIpAndPort("2001:db8::2", 6800);
        Map<String, String> headers = new HashMap<>();
        B3Propagation.FACTORY.get().injector((Map<String, String> map, String key, String value) -> map.put(key, value))
            .inject(client.context(), headers);
        TraceContextOrSamplingFlags extracted =
            B3Propagation.FACTORY.get().extractor((Map<String, String> map, String key) -> map.get(key)).extract(headers);
        Span shared = store.tracer().joinSpan(extracted.context()).name("write").kind(Span.Kind.SERVER).start();
        shared.annotate("journalled");
        shared.error(new IllegalStateException("disk full"));
        shared.finish();
        client.error(new RuntimeException());
        client.finish();

        Span produced = front.tracer().newChild(server.context()).name("notify").kind(Span.Kind.PRODUCER).start();
        produced.remoteServiceName("kafka");
        produced.finish();
        Span consumed = store.tracer().newChild(produced.context()).name("notified").kind(Span.Kind.CONSUMER).start();
        consumed.finish();
        // A span that is reported before it ends.
        front.tracer().newChild(server.context()).name("unfinished").start().flush();
        server.finish();
        return server.context().traceIdString();
    }

    static void openTelemetry(String road, List<Server> servers, BiFunction<Server, SpanBytesEncoder, BytesMessageSender> to,
        SpanBytesEncoder encoder) {
        var resource = Resource.create(Attributes.of(AttributeKey.stringKey("service.name"), "Front"));
        var provider = SdkTracerProvider.builder().setResource(resource);
        for (Server server : servers) {
            var exporter = ZipkinSpanExporter.builder().setSender(to.apply(server, encoder)).setEncoder(encoder);
            provider.addSpanProcessor(SimpleSpanProcessor.create(exporter.build()));
        }
        try (SdkTracerProvider built = provider.build()) {
            Tracer tracer = built.get("a library", "1.2");
            var server = tracer.spanBuilder("PUT /objects").setSpanKind(SpanKind.SERVER).startSpan();
            server.setAttribute("http.request.method", "PUT").setAttribute("bytes", 4096L).setAttribute("ratio", 0.5);
            server.setAttribute(AttributeKey.stringArrayKey("replicas"), List.of("osd.0", "größe"));
            server.addEvent("queued", Attributes.of(AttributeKey.longKey("depth"), 7L));
            var context = Context.root().with(server);
            var client = tracer.spanBuilder("write").setSpanKind(SpanKind.CLIENT).setParent(context).startSpan();
            client.setAttribute("peer.service", "Store").setAttribute("server.address", "192.0.2.9").setAttribute("server.port", 6800L);
            client.setStatus(StatusCode.ERROR, "disk full");
            client.recordException(new IllegalStateException("disk full"));
            client.end();
            tracer.spanBuilder("notify").setSpanKind(SpanKind.PRODUCER).setParent(context).startSpan().end();
            tracer.spanBuilder("checksum").setParent(context).startSpan().end();
            server.setStatus(StatusCode.OK);
            server.end();
            built.forceFlush().join(10, TimeUnit.SECONDS);
            System.out.println(road + " " + server.getSpanContext().getTraceId());
        }
    }

    /** Sends an empty list, as a reporter does to check whether a server is there. */
    static void check(BytesMessageSender sender) throws Exception {
        sender.send(List.of());
        sender.close();
    }

    public static void main(String[] args) throws Exception {
        var servers = List.of(new Server(args[0], args[1]), new Server(args[2], args[3]));
        for (Server server : servers) {
            check(urlConnection(server, Encoding.JSON));
            check(okHttp(server, Encoding.JSON));
            check(plain(server, Encoding.PROTO3));
            check(urlConnection(server, Encoding.THRIFT));
            check(scribe(server, Encoding.THRIFT));
        }
        brave("brave-json", false, servers, server -> direct(urlConnection(server, Encoding.JSON)));
        brave("brave-json-plain", true, servers, server -> direct(plain(server, Encoding.JSON)));
        brave("brave-json-okhttp", true, servers, server -> direct(okHttp(server, Encoding.JSON)));
        brave("brave-proto3", true, servers, server -> direct(okHttp(server, Encoding.PROTO3)));
        brave("brave-thrift", false, servers, server -> converted(okHttp(server, Encoding.THRIFT), SpanBytesEncoder.THRIFT));
        brave("brave-scribe", true, servers, server -> converted(scribe(server, Encoding.THRIFT), SpanBytesEncoder.THRIFT));
        openTelemetry("otel-json", servers, (server, encoder) -> okHttp(server, Encoding.JSON), SpanBytesEncoder.JSON_V2);
        openTelemetry("otel-proto3", servers, (server, encoder) -> urlConnection(server, Encoding.PROTO3), SpanBytesEncoder.PROTO3);
        if (METRICS.messagesDropped() + METRICS.spansDropped() > 0) {
            throw new IllegalStateException(METRICS.messagesDropped() + " messages dropped: " + METRICS.messagesDroppedByCause());
        }
    }
}
