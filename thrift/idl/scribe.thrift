// Scribe, as BlkKin speaks it: over framed TBinary, port 9410 (classic Scribe: 1463).
// fb303's base service stands here in the part that is answered, so that this file needs no other.

namespace py blkin.scribe

enum fb_status {
  DEAD = 0,
  STARTING = 1,
  ALIVE = 2,
  STOPPING = 3,
  STOPPED = 4,
  WARNING = 5
}

service FacebookService {
  string getName(),
  string getVersion(),
  fb_status getStatus(),
  string getStatusDetails(),
  map<string, i64> getCounters(),
  i64 getCounter(1: string key),
  i64 aliveSince()
}

enum ResultCode {
  // All entries are taken.
  OK = 0,
  // No entry is taken: send the same call again later.
  TRY_LATER = 1
}

struct LogEntry {
  // "zipkin": the message is a zipkinCore.Span in TBinary, base64.
  1: string category,
  2: string message
}

service scribe extends FacebookService {
  ResultCode Log(1: list<LogEntry> messages)
}
