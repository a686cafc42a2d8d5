import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.HexFormat;
import java.util.List;
import zipkin2.DependencyLink;
import zipkin2.Span;
import zipkin2.codec.DependencyLinkBytesEncoder;
import zipkin2.codec.SpanBytesDecoder;
import zipkin2.codec.SpanBytesEncoder;
import zipkin2.internal.DependencyLinker;
import zipkin2.internal.Trace;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Answers each line "kind TAB input" with the result of Zipkin's own library, or with "error". */
final class Oracle {
  public static void main(String[] args) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, UTF_8));
    PrintStream out = new PrintStream(System.out, false, UTF_8);
    for (String line; (line = in.readLine()) != null; ) {
      String[] parts = line.split("\t", 2);
      String answer;
      try {
        answer = answer(parts[0], parts[1]);
      } catch (RuntimeException e) {
        answer = "error";
      }
      out.println(answer);
    }
    out.flush();
  }

  static String answer(String kind, String input) {
    switch (kind) {
      case "v1json":
        return spans(SpanBytesDecoder.JSON_V1.decodeList(input.getBytes(UTF_8)));
      case "v1thrift":
        return spans(SpanBytesDecoder.THRIFT.decodeList(HexFormat.of().parseHex(input)));
      case "v2json":
        return spans(SpanBytesDecoder.JSON_V2.decodeList(input.getBytes(UTF_8)));
      case "merge":
        return spans(Trace.merge(SpanBytesDecoder.JSON_V2.decodeList(input.getBytes(UTF_8))));
      case "links":
        List<Span> trace = SpanBytesDecoder.JSON_V2.decodeList(input.getBytes(UTF_8));
        List<DependencyLink> links = new DependencyLinker().putTrace(trace).link();
        return new String(DependencyLinkBytesEncoder.JSON_V1.encodeList(links), UTF_8);
      default:
        throw new IllegalArgumentException(kind);
    }
  }

  static String spans(List<Span> spans) {
    return new String(SpanBytesEncoder.JSON_V2.encodeList(spans), UTF_8);
  }
}
