/* An RPC server in the style of nfs-ganesha, with Debian's libntirpc headers and -DHAVE_BLKIN. */
#include <rpc/rpc.h>
#include <rpc/svc.h>

#include "expect.h"

static void serve(SVCXPRT *xprt, struct svc_req *req)
{
	blkin_init_new_trace(&req->bl_trace, "nfs-ganesha", &xprt->blkin.endp);
	BLKIN_TIMESTAMP(&req->bl_trace, &xprt->blkin.endp, "pre-recv")
	BLKIN_KEYVAL_INTEGER(&req->bl_trace, &xprt->blkin.endp, "rq-xid", 4711)
	expect(&req->bl_trace.info, "nfs-ganesha", "10.0.0.1", 2049, "ganesha", "pre-recv", "!");
	expect(&req->bl_trace.info, "nfs-ganesha", "10.0.0.1", 2049, "ganesha", "rq-xid", "#4711");
}

int main(void)
{
	SVCXPRT *xprt = calloc(1, sizeof *xprt);
	struct svc_req *req = calloc(1, sizeof *req);

	CHECK(xprt && req && (SVC_INIT_BLKIN & 0x10));
	xprt->blkin.svc_name = strdup("ganesha");
	blkin_init_endpoint(&xprt->blkin.endp, "10.0.0.1", 2049, xprt->blkin.svc_name);
	serve(xprt, req);
	free(xprt->blkin.svc_name);
	free(req);
	free(xprt);
	return 0;
}
