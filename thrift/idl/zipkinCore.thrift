// Zipkin's v1 span, as in openzipkin/zipkin-api, with the extension fields of BlkKin (ids from 32001).
// Zipkin skips fields that it does not know, so a BlkKin span is also a valid Zipkin span.
//
// The pair (source, position) identifies an annotation: a collector stores it once, however often it arrives.

namespace py blkin.zipkinCore

// Core annotations: client send, client receive, server receive, server send, message send and receive, wire send and
// receive, fragments of these, local component, error, client, server and message address.
const string CLIENT_SEND = "cs"
const string CLIENT_RECV = "cr"
const string SERVER_SEND = "ss"
const string SERVER_RECV = "sr"
const string MESSAGE_SEND = "ms"
const string MESSAGE_RECV = "mr"
const string WIRE_SEND = "ws"
const string WIRE_RECV = "wr"
const string CLIENT_SEND_FRAGMENT = "csf"
const string CLIENT_RECV_FRAGMENT = "crf"
const string SERVER_SEND_FRAGMENT = "ssf"
const string SERVER_RECV_FRAGMENT = "srf"
const string LOCAL_COMPONENT = "lc"
const string ERROR = "error"
const string CLIENT_ADDR = "ca"
const string SERVER_ADDR = "sa"
const string MESSAGE_ADDR = "ma"

struct Endpoint {
  // Big-endian; 0: none.
  1: i32 ipv4,
  // Read as unsigned; 0: none.
  2: i16 port,
  // "": none.
  3: string service_name,
  // 16 bytes.
  4: optional binary ipv6
}

struct Annotation {
  // Microseconds since 1970.
  1: i64 timestamp,
  2: string value,
  3: optional Endpoint host,
  // BlkKin: slot << 40 | the low 40 bits of the grain position in that slot's ring.
  32001: optional i64 position,
  // BlkKin: the segment (hash of boot id, device and inode), if it is not that of the span.
  32002: optional i64 source,
  // BlkKin: 0 to 999, nanoseconds below the microsecond.
  32003: optional i16 nanos
}

enum AnnotationType {
  BOOL = 0,
  BYTES = 1,
  I16 = 2,
  I32 = 3,
  I64 = 4,
  DOUBLE = 5,
  STRING = 6
}

struct BinaryAnnotation {
  1: string key,
  2: binary value,
  // BlkKin sends integers as STRING, because Zipkin shows no other type.
  3: AnnotationType annotation_type,
  4: optional Endpoint host,
  // BlkKin: as in Annotation.
  32001: optional i64 position,
  32002: optional i64 source
}

struct Span {
  // The low 64 bits; not 0.
  1: i64 trace_id,
  3: string name,
  // Not 0.
  4: i64 id,
  5: optional i64 parent_id,
  6: list<Annotation> annotations,
  8: list<BinaryAnnotation> binary_annotations,
  9: optional bool debug = 0,
  // Microseconds since 1970, set by the service that starts the span.
  10: optional i64 timestamp,
  // Microseconds.
  11: optional i64 duration,
  // The high 64 bits.
  12: optional i64 trace_id_high,
  // BlkKin: the segment that the annotations came from; if there are several, that of the first annotation.
  32002: optional i64 source
}
