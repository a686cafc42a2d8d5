/* clients.c - one thread for each client, which has one operation under way at a time. */
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gateway.h"
#include "log.h"
#include "net.h"

struct client {
	struct clients *clients;
	struct conn *conn;
	pthread_t thread;
	bool used, finished;
};

struct clients {
	struct gateway *gateway;
	int listener;
	pthread_t acceptor;
	pthread_mutex_t lock;
	struct client all[MAX_CLIENTS];
};

static void *client_thread(void *arg)
{
	struct client *client = arg;
	struct msg msg;
	bool good = true;

	while (good && conn_receive(client->conn, &msg) == 0) {
		good = vlmc_serve(client->clients->gateway, client->conn, &msg);
		msg_clear(&msg);
	}
	conn_shutdown(client->conn);
	pthread_mutex_lock(&client->clients->lock);
	client->finished = true;
	pthread_mutex_unlock(&client->clients->lock);
	return NULL;
}

static void reap(struct client *client)
{
	pthread_join(client->thread, NULL);
	conn_release(client->conn);
	client->used = false;
}

static struct client *find_place(struct clients *clients)
{
	struct client *place = NULL;

	for (int n = 0; n < MAX_CLIENTS; n++) {
		struct client *client = &clients->all[n];
		if (client->used && client->finished)
			reap(client);
		if (!client->used)
			place = client;
	}
	return place;
}

static void start_client(struct clients *clients, int fd)
{
	struct client *place;

	pthread_mutex_lock(&clients->lock);
	place = find_place(clients);
	if (place && (place->conn = conn_new(fd)) != NULL) {
		place->clients = clients;
		place->finished = false;
		place->used = pthread_create(&place->thread, NULL, client_thread, place) == 0;
		if (!place->used)
			conn_release(place->conn);
	} else if (!place) {
		log_line("refusing a client: there are %d already", MAX_CLIENTS);
		close(fd);
	}
	pthread_mutex_unlock(&clients->lock);
}

static void *accept_thread(void *arg)
{
	struct clients *clients = arg;
	int fd;

	while ((fd = net_accept(clients->listener)) >= 0)
		start_client(clients, fd);
	return NULL;
}

struct clients *clients_start(struct gateway *gateway, int listener)
{
	struct clients *clients = calloc(1, sizeof *clients);

	if (!clients)
		die("failed to allocate: out of memory");
	clients->gateway = gateway;
	clients->listener = listener;
	pthread_mutex_init(&clients->lock, NULL);
	if (pthread_create(&clients->acceptor, NULL, accept_thread, clients) != 0)
		die("failed to start the accepting thread");
	return clients;
}

void clients_stop(struct clients *clients)
{
	shutdown(clients->listener, SHUT_RDWR);
	pthread_join(clients->acceptor, NULL);
	close(clients->listener);
	for (int n = 0; n < MAX_CLIENTS; n++)
		if (clients->all[n].used) {
			conn_shutdown(clients->all[n].conn);
			reap(&clients->all[n]);
		}
	pthread_mutex_destroy(&clients->lock);
	free(clients);
}
